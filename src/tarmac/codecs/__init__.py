"""Field to bytes by extension. Decoding joins here later; each codec's library is imported only when used."""

from tarmac.codecs.encode import Encoder, encode_field, encoders, find_encoder

__all__ = ["encode_field", "Encoder", "encoders", "find_encoder"]
