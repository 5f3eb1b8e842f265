"""Video and audio decode from memory, within limits, without opening other files."""

from __future__ import annotations

import io
import pickle
import socket
import sys

import av
import numpy as np
import pytest
import soundfile
import torch

from tarmac.codecs import Decoder
from tarmac.codecs.media import torch_audio, torch_video
from tarmac.errors import CodecError, DecodeFailed, DecompressionBomb
from tarmac.limits import Limits

TONE = (np.sin(np.arange(16_000) / 20) * 0.5).astype("f4")
STEREO = np.stack([TONE, -TONE])


def add_audio(container, stream, samples):
    sample_format = "s32" if stream.codec_context.name.startswith("pcm") else "fltp"
    if not stream.codec_context.is_open:
        stream.codec_context.open()
    step = stream.codec_context.frame_size or 1000
    for start in range(0, samples.shape[1] - step + 1, step):
        part = np.ascontiguousarray(samples[:, start : start + step])
        if sample_format == "s32":
            part = (part.T * 2**31).astype("i4").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(part, format=sample_format, layout="stereo")
        frame.sample_rate, frame.pts = stream.rate, start
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def video(format, codec, audio_codec=None, frames=12, size=(64, 48)):
    stream = io.BytesIO()
    with av.open(stream, "w", format=format) as container:
        images = container.add_stream(codec, rate=24)
        images.width, images.height = size
        images.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        rate = 48_000 if audio_codec == "libopus" else 44_100
        audio = (
            container.add_stream(audio_codec, rate=rate, layout="stereo", bit_rate=128_000)
            if audio_codec
            else None
        )
        for number in range(frames):
            array = np.full((size[1], size[0], 3), 20 * number % 256, "u1")
            container.mux(images.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(images.encode())
        if audio:
            add_audio(container, audio, STEREO)
    return stream.getvalue()


def recording(format, codec):
    stream = io.BytesIO()
    with av.open(stream, "w", format=format) as container:
        audio = container.add_stream(codec, rate=16_000, layout="stereo", bit_rate=128_000)
        add_audio(container, audio, STEREO)
    return stream.getvalue()


VIDEOS = {
    "mp4": ("mp4", "mpeg4", "aac"),
    "MP4": ("mp4", "mpeg4", "aac"),
    "mov": ("mov", "mpeg4", None),
    "avi": ("avi", "mpeg4", "mp2"),
    "webm": ("webm", "libvpx", "libopus"),
    "mpg": ("mpeg", "mpeg1video", "mp2"),
    "mjpeg": ("mjpeg", "mjpeg", None),
    "wmv": ("asf", "wmv2", "wmav2"),
}


@pytest.mark.parametrize("field", VIDEOS)
def test_video(field):
    audio_codec = VIDEOS[field][2]
    frames, samples, info = Decoder([torch_video])({field: video(*VIDEOS[field])})[field]
    assert frames.shape == (12, 48, 64, 3)
    assert frames.dtype == torch.uint8
    means = frames.float().mean((1, 2, 3))
    assert (means - 20.0 * torch.arange(12)).abs().max() < 6
    assert samples.dtype == torch.float32
    assert info["video_fps"] == pytest.approx(25 if field == "mjpeg" else 24)
    if audio_codec is None:
        assert samples.shape == (1, 0)
        assert set(info) == {"video_fps"}
    else:
        assert samples.shape[0] == 2
        assert samples.shape[1] == pytest.approx(16_000, abs=4000)
        assert samples.abs().max() == pytest.approx(0.5, abs=0.1)
        assert info["audio_fps"] == (48_000 if audio_codec == "libopus" else 44_100)


@pytest.mark.parametrize(
    ("field", "format", "subtype", "tolerance"),
    [
        ("wav", "WAV", "PCM_16", 1e-4),
        ("wav", "WAV", "FLOAT", 0),
        ("flac", "FLAC", "PCM_24", 1e-6),
        ("ogg", "OGG", "VORBIS", 0.1),
        ("mp3", "MP3", None, 0.1),
        ("a.WAV", "WAV", "PCM_16", 1e-4),
    ],
)
def test_audio_read_by_soundfile(field, format, subtype, tolerance):
    stream = io.BytesIO()
    soundfile.write(stream, STEREO.T, 16_000, format=format, subtype=subtype)
    samples, rate = Decoder([torch_audio])({field: stream.getvalue()})[field]
    assert rate == 16_000
    assert samples.dtype == torch.float32
    assert samples.shape == STEREO.shape
    assert samples.is_contiguous()
    assert (samples - torch.from_numpy(STEREO)).abs().max() <= tolerance


@pytest.mark.parametrize(
    ("field", "format", "codec"),
    [("m4a", "mp4", "aac"), ("wma", "asf", "wmav2"), ("sox", "sox", "pcm_s32le")],
)
def test_audio_read_by_av(field, format, codec):
    samples, rate = torch_audio(f".{field}", recording(format, codec))
    assert rate == 16_000
    assert samples.dtype == torch.float32
    assert samples.shape[0] == 2
    assert samples.shape[1] == pytest.approx(16_000, abs=3000)
    assert samples.abs().max() == pytest.approx(0.5, abs=0.12)
    assert torch.allclose(samples[0], -samples[1], atol=0.05)


def test_files_that_soundfile_cannot_read_go_to_av(monkeypatch):
    aac = recording("mp4", "aac")  # under the wrong name
    assert torch_audio(".wav", aac)[1] == 16_000
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DecodeFailed, match="LibsndfileError"):
        Decoder([torch_audio])({"wav": aac})


def test_files_without_audio_or_video():
    silent = io.BytesIO()
    soundfile.write(silent, np.zeros((0, 1)), 8000, format="WAV")
    samples, rate = torch_audio(".wav", silent.getvalue())
    assert (samples.shape, rate) == ((1, 0), 8000)
    frames, samples, info = torch_video(".mp4", recording("mp4", "aac"))
    assert frames.shape == (0, 1, 1, 3)
    assert samples.shape[0] == 2
    assert info == {"audio_fps": 16_000}
    with pytest.raises(DecodeFailed, match='field "m4a"'):
        Decoder([torch_audio])({"m4a": video("mp4", "mpeg4")})


def test_other_fields_stay_bytes_and_handlers_pickle():
    decode = pickle.loads(pickle.dumps(Decoder([torch_video, torch_audio])))
    assert decode({"cls": b"1", "jpg": b"x"}) == {"cls": 1, "jpg": b"x"}
    assert torch_video(".wav", b"") is None
    assert torch_audio(".mp4", b"") is None
    assert pickle.loads(pickle.dumps(torch_audio)) is torch_audio


def test_limits():
    data = video("mp4", "mpeg4", "aac", frames=12)
    assert Decoder([torch_video], limits=Limits(pixels=64 * 48))({"mp4": data})
    for limits in (
        Limits(pixels=64 * 48 - 1),
        Limits(media_bytes=5 * 64 * 48 * 3),
        Limits(media_bytes=12 * 64 * 48 * 3 + 1),
    ):
        with pytest.raises(DecompressionBomb, match='field "mp4"'):
            Decoder([torch_video], limits=limits)({"mp4": data})
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(3_000_000, "f4"), 16_000, format="FLAC")
    assert torch_audio(".flac", stream.getvalue())[0].shape == (1, 3_000_000)
    with pytest.raises(DecompressionBomb):
        Decoder([torch_audio], limits=Limits(media_bytes=8_000_000))({"flac": stream.getvalue()})
    with pytest.raises(DecompressionBomb):
        Decoder([torch_audio], limits=Limits(media_bytes=8_000))({"m4a": recording("mp4", "aac")})


def playlists(base, path):
    yield f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{base}/a.ts\n#EXT-X-ENDLIST\n"
    yield f"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:10,\n{path}\n#EXT-X-ENDLIST\n"
    yield f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{base}/b.m3u8\n"
    yield f"ffconcat version 1.0\nfile '{base}/c.mp4'\n"
    yield f"ffconcat version 1.0\nfile '{path}'\n"
    yield (
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011' type='static' profiles='x'><Period>"
        f"<BaseURL>{base}/</BaseURL><AdaptationSet mimeType='video/mp4'>"
        "<Representation id='1' bandwidth='1'><BaseURL>d.mp4</BaseURL></Representation>"
        "</AdaptationSet></Period></MPD>"
    )
    yield f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\na={base}\n"
    yield f"[reference]\nRef1={base}/e.mp4\n"


def test_no_other_file_or_url_is_opened(tmp_path):
    """A playlist in an mp4 field must not make the decoder fetch URLs or open files."""
    secret = tmp_path / "secret.ts"
    secret.write_bytes(video("mpegts", "mpeg1video"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        for text in playlists(base, secret):
            for field, handler in (
                ("mp4", torch_video),
                ("webm", torch_video),
                ("m4a", torch_audio),
                ("wav", torch_audio),
            ):
                with pytest.raises(CodecError):
                    Decoder([handler])({"__key__": "k", field: text.encode()})
        with pytest.raises(BlockingIOError):  # the system completes a connection before it is accepted
            server.accept()


@pytest.mark.parametrize("field", ["mp4", "avi", "webm", "wav", "flac", "mp3", "ogg", "m4a"])
def test_damage(field):
    decode = Decoder([torch_video, torch_audio])
    for bad in (b"", b"x", bytes(1000), b"RIFF" + bytes(60), b"fLaC" + bytes(60), b"OggS" + bytes(60)):
        with pytest.raises(CodecError) as caught:
            decode({"__key__": "k", "__url__": "u", field: bad})
        assert (caught.value.key, caught.value.url, caught.value.field) == ("k", "u", field)


@pytest.mark.parametrize(
    ("module", "field", "extra"),
    [
        ("av", "mp4", "video"),
        ("soundfile", "wav", "audio"),
        ("av", "m4a", "video"),
        ("torch", "mp4", "torch"),
        ("torch", "wav", "torch"),
    ],
)
def test_missing_libraries_name_their_extra(monkeypatch, module, field, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"tarmac-data\[{extra}\]"):
        Decoder([torch_video, torch_audio])({field: b""})
