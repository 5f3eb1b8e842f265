"""What both doors do to one sample: fields, decoding, pictures, handlers."""
