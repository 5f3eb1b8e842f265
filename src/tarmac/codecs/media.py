"""Decode video and audio to torch tensors: PyAV for video, soundfile or PyAV for audio.

Pass the handlers to `decode` to use them: `decode(torch_video, torch_audio)`.
"""

from __future__ import annotations

import importlib.util
import io
from functools import partial
from typing import Any

from tarmac.codecs.handlers import DecodeFunction, DecodeOptions, FieldHandler, extension_of
from tarmac.codecs.pixels import check_pixels
from tarmac.codecs.registry import Codec, register_codec
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.extras import import_extra
from tarmac.limits import MIB, Limits

_VIDEO = Codec[Any]("mp4 ogv mjpeg avi mov h264 mpg webm wmv", kind="video")
_AUDIO = Codec[Any]("flac mp3 sox wav m4a ogg wma", kind="audio")
_SOUNDFILE = frozenset(("flac", "mp3", "wav", "ogg"))
register_codec(_VIDEO)
register_codec(_AUDIO)

# Some formats list other files and URLs, which FFmpeg would open. Allow only self-contained formats, and no
# protocol to open anything with.
_OPTIONS = {
    "format_whitelist": (
        "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,asf,h264,hevc,mjpeg,mpeg,mpegts,mpegvideo,m4v,"
        "flv,wav,w64,mp3,flac,aac,aiff,sox,au"
    ),
    "protocol_whitelist": "none",
}


class VideoHandler(FieldHandler):
    """Decodes video into frames [T, H, W, 3], audio [channels, samples] and a dictionary of rates."""

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        if extension_of(key) not in _VIDEO.names:
            return None
        return partial(_decode_video, limits=options.limits)

    def __reduce__(self) -> str:
        return "torch_video"


class AudioHandler(FieldHandler):
    """Decodes audio into float32 samples [channels, samples] and their rate."""

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        extension = extension_of(key)
        if extension not in _AUDIO.names:
            return None
        return partial(_decode_audio, extension=extension, limits=options.limits)

    def __reduce__(self) -> str:
        return "torch_audio"


torch_video = VideoHandler()
"""Handler for mp4, mov, avi, webm and other video: frames, audio, `{"video_fps": …, "audio_fps": …}`."""
torch_audio = AudioHandler()
"""Handler for wav, flac, mp3, ogg, m4a and wma: samples and their rate."""


class _Budget:
    """Counts decoded bytes and raises beyond the limit."""

    def __init__(self, limits: Limits) -> None:
        self.max_bytes = limits.media_bytes
        self.used = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.max_bytes:
            raise DecompressionBomb(
                f"the recording decodes to more than {self.max_bytes} bytes.",
                hint="cut it into shorter recordings, or raise Limits.media_bytes if you trust the data.",
            )


class _Audio:
    """Collects decoded audio as planes of float32, whatever the codec returns."""

    def __init__(self, av: Any, budget: _Budget) -> None:
        self._resampler = av.AudioResampler(format="fltp")
        self._budget = budget
        self._parts: list[Any] = []

    def add(self, frame: Any) -> None:
        for resampled in self._resampler.resample(frame):
            part = resampled.to_ndarray()
            self._budget.take(part.nbytes)
            self._parts.append(part)

    def finish(self) -> Any:
        import numpy as np

        if not self._parts:
            return np.zeros((1, 0), np.float32)
        self.add(None)
        return np.concatenate(self._parts, axis=1)


def _decode_video(data: bytes, limits: Limits) -> tuple[Any, Any, dict[str, Any]]:
    import numpy as np

    av = import_extra("av", "video", "video fields")
    torch = import_extra("torch", "torch", "video fields")
    budget = _Budget(limits)
    frames: list[Any] = []
    info: dict[str, Any] = {}
    with av.open(io.BytesIO(data), options=_OPTIONS) as container:
        audio = _Audio(av, budget)
        # Other streams (subtitles, data) are ignored.
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        if not streams:
            raise DecodeFailed("the file has neither video nor audio.")
        for stream in streams:
            if stream.codec_context is None:
                raise DecodeFailed(f"no decoder for its {stream.type} stream.")
            if stream.type == "video":
                check_pixels(stream.codec_context.width, stream.codec_context.height, limits.pixels)
                if stream.average_rate is not None:
                    info["video_fps"] = float(stream.average_rate)
            else:
                info["audio_fps"] = stream.codec_context.sample_rate
        for frame in container.decode(*streams):
            if isinstance(frame, av.VideoFrame):
                check_pixels(frame.width, frame.height, limits.pixels)
                budget.take(3 * frame.width * frame.height)
                frames.append(frame.to_ndarray(format="rgb24"))
            else:
                audio.add(frame)
        samples = audio.finish()
    images = np.stack(frames) if frames else np.zeros((0, 1, 1, 3), np.uint8)
    return torch.from_numpy(images), torch.from_numpy(samples), info


def _decode_audio(data: bytes, extension: str, limits: Limits) -> tuple[Any, int]:
    torch = import_extra("torch", "torch", "audio fields")
    samples = None
    if extension in _SOUNDFILE:
        soundfile = import_extra("soundfile", "audio", "audio fields")
        try:
            samples, rate = _read_soundfile(soundfile, data, limits)
        except soundfile.LibsndfileError:
            # PyAV supports more codecs; without it, report this error.
            if importlib.util.find_spec("av") is None:
                raise
    if samples is None:
        samples, rate = _read_av(data, extension, limits)
    return torch.from_numpy(samples), rate


def _read_soundfile(soundfile: Any, data: bytes, limits: Limits) -> tuple[Any, int]:
    import numpy as np

    budget = _Budget(limits)
    parts = []
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        # Read in chunks: the number of samples in the header cannot be trusted.
        chunk = max(1, MIB // file.channels)
        while True:
            part = file.read(chunk, dtype="float32", always_2d=True)
            budget.take(part.nbytes)
            parts.append(part)
            if len(part) < chunk:
                break
        rate = int(file.samplerate)
    return np.ascontiguousarray(np.concatenate(parts).T), rate


def _read_av(data: bytes, extension: str, limits: Limits) -> tuple[Any, int]:
    av = import_extra("av", "video", f"{extension} fields")
    with av.open(io.BytesIO(data), options=_OPTIONS) as container:
        if not container.streams.audio:
            raise DecodeFailed("the file has no audio.")
        stream = container.streams.audio[0]
        audio = _Audio(av, _Budget(limits))
        for frame in container.decode(stream):
            audio.add(frame)
        return audio.finish(), int(stream.codec_context.sample_rate)
