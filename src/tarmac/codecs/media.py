"""Video and sound to torch tensors, from memory: PyAV for video, soundfile or PyAV for sound.

Both handlers are passed to `decode` by those who want them: `decode(torch_video, torch_audio)`.
"""

from __future__ import annotations

import importlib.util
import io
from functools import partial
from typing import Any

from tarmac.codecs.handlers import FieldHandler, Function, Settings, extension_of, words
from tarmac.codecs.pixels import check_pixels
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.extras import import_extra
from tarmac.limits import MIB, Limits

__all__ = ["torch_audio", "torch_video"]

VIDEO_EXTENSIONS = frozenset(words("mp4 ogv mjpeg avi mov h264 mpg webm wmv"))
AUDIO_EXTENSIONS = frozenset(words("flac mp3 sox wav m4a ogg wma"))
_SOUNDFILE = frozenset(words("flac mp3 wav ogg"))

# Some formats are lists of other files and addresses, which would be opened: only those that hold
# everything themselves are read, and no protocol is there to open anything with.
_OPTIONS = {
    "format_whitelist": (
        "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,asf,h264,hevc,mjpeg,mpeg,mpegts,mpegvideo,m4v,"
        "flv,wav,w64,mp3,flac,aac,aiff,sox,au"
    ),
    "protocol_whitelist": "none",
}


class VideoHandler(FieldHandler):
    """Decodes video into frames [T, H, W, 3], sound [channels, samples] and a dictionary of rates."""

    def find(self, key: str, settings: Settings) -> Function | None:
        if extension_of(key) not in VIDEO_EXTENSIONS:
            return None
        return partial(_video, limits=settings.limits)

    def __reduce__(self) -> str:
        return "torch_video"


class AudioHandler(FieldHandler):
    """Decodes sound into float32 samples [channels, samples] and their rate."""

    def find(self, key: str, settings: Settings) -> Function | None:
        extension = extension_of(key)
        if extension not in AUDIO_EXTENSIONS:
            return None
        return partial(_audio, extension=extension, limits=settings.limits)

    def __reduce__(self) -> str:
        return "torch_audio"


torch_video = VideoHandler()
"""Handler for mp4, mov, avi, webm and other video: frames, sound, `{"video_fps": …, "audio_fps": …}`."""
torch_audio = AudioHandler()
"""Handler for wav, flac, mp3, ogg, m4a and wma: samples and their rate."""


class _Budget:
    """Counts decoded bytes, and refuses to go beyond the limit."""

    def __init__(self, limits: Limits) -> None:
        self.most = limits.media_bytes
        self.used = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.most:
            raise DecompressionBomb(
                f"the recording decodes to more than {self.most} bytes.",
                hint="cut it into shorter pieces, or raise Limits.media_bytes if the data is trusted.",
            )


class _Sound:
    """Collects decoded sound as planes of float32, whatever the codec gives."""

    def __init__(self, av: Any, budget: _Budget) -> None:
        self._resampler = av.AudioResampler(format="fltp")
        self._budget = budget
        self._parts: list[Any] = []

    def add(self, frame: Any) -> None:
        for piece in self._resampler.resample(frame):
            part = piece.to_ndarray()
            self._budget.take(part.nbytes)
            self._parts.append(part)

    def finish(self) -> Any:
        import numpy as np

        if not self._parts:
            return np.zeros((1, 0), np.float32)
        self.add(None)
        return np.concatenate(self._parts, axis=1)


def _video(data: bytes, limits: Limits) -> tuple[Any, Any, dict[str, Any]]:
    import numpy as np

    av = import_extra("av", "video", "video fields")
    torch = import_extra("torch", "torch", "video fields")
    budget = _Budget(limits)
    frames: list[Any] = []
    info: dict[str, Any] = {}
    with av.open(io.BytesIO(data), options=_OPTIONS) as container:
        sound = _Sound(av, budget)
        # Streams of other kinds (subtitles, data) are left alone.
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        if not streams:
            raise DecodeFailed("no video and no sound inside.")
        for stream in streams:
            if stream.codec_context is None:
                raise DecodeFailed(f"nothing decodes its {stream.type}.")
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
                sound.add(frame)
        samples = sound.finish()
    pictures = np.stack(frames) if frames else np.zeros((0, 1, 1, 3), np.uint8)
    return torch.from_numpy(pictures), torch.from_numpy(samples), info


def _audio(data: bytes, extension: str, limits: Limits) -> tuple[Any, int]:
    torch = import_extra("torch", "torch", "audio fields")
    samples = None
    if extension in _SOUNDFILE:
        soundfile = import_extra("soundfile", "audio", "audio fields")
        try:
            samples, rate = _by_soundfile(soundfile, data, limits)
        except soundfile.LibsndfileError:
            # PyAV knows more codecs; where it is not installed, this error is the one to tell.
            if importlib.util.find_spec("av") is None:
                raise
    if samples is None:
        samples, rate = _by_av(data, extension, limits)
    return torch.from_numpy(samples), rate


def _by_soundfile(soundfile: Any, data: bytes, limits: Limits) -> tuple[Any, int]:
    import numpy as np

    budget = _Budget(limits)
    parts = []
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        # Piece by piece: the number of samples in the header may be anything.
        piece = max(1, MIB // file.channels)
        while True:
            part = file.read(piece, dtype="float32", always_2d=True)
            budget.take(part.nbytes)
            parts.append(part)
            if len(part) < piece:
                break
        rate = int(file.samplerate)
    return np.ascontiguousarray(np.concatenate(parts).T), rate


def _by_av(data: bytes, extension: str, limits: Limits) -> tuple[Any, int]:
    av = import_extra("av", "video", f"{extension} fields")
    with av.open(io.BytesIO(data), options=_OPTIONS) as container:
        if not container.streams.audio:
            raise DecodeFailed("no sound inside.")
        stream = container.streams.audio[0]
        sound = _Sound(av, _Budget(limits))
        for frame in container.decode(stream):
            sound.add(frame)
        return sound.finish(), int(stream.codec_context.sample_rate)
