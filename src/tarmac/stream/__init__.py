"""Stream samples from shards, from start to end.

The modules, in the order in which data passes through them:

1. `shards/`: list shards (`lists`, `specs`, `directory`) and split them between readers (`split`, `equal_split`);
2. `shuffle`: shuffle shards, and later samples;
3. `read_shards`: read the samples of each shard;
4. `tarmac.steps`: decode, map and select samples; `mix` combines datasets, `sample_cache` keeps samples;
5. `batch`: collate samples into batches;
6. `webloader`: run the pipeline in the worker processes of torch's DataLoader.

`pipeline` runs the stages, `fluent` offers them as methods, and `webdataset` is the usual pipeline in one class.
`epochs` counts epochs across workers. `state` saves and restores the position of a pipeline. The contract of a
stage is `tarmac.steps.stage.PipelineStage`.
"""
