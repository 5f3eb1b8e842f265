"""Where each sample is: a sidecar per shard, a manifest per dataset, metadata to select samples by."""
