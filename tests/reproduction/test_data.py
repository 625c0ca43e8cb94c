"""Data sets: file locations, rejected files, classes, and balanced subsets."""

import gzip
import hashlib
import struct
import tracemalloc
import urllib.request

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcover.errors import McoverError
from reproduction import published
from reproduction.data import Dataset, holdout, load, mislabel, pooled, signs, subset


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def made_up(train=40, test=20, side=28):
    rng = np.random.default_rng(0)
    contents = []
    for count in (train, test):
        contents.append(idx_bytes(rng.integers(0, 256, (count, side, side), dtype=np.uint8)))
        contents.append(idx_bytes(np.arange(count, dtype=np.uint8) % 10))
    return dict(zip(published.FILES, contents, strict=True))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A machine with an empty cache, no data folder, and an address that does not answer."""

    def nobody(address):
        raise OSError("no network")

    monkeypatch.setattr(published, "_open", nobody)
    monkeypatch.delenv(published.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(published.ADDRESSES, "mnist", ("https://nowhere/",))
    trust(monkeypatch, made_up())
    return tmp_path


def serve(monkeypatch, folder):
    """Lets the address https://site/ answer with the files of a folder."""

    def answer(address):
        if not address.startswith("https://site/"):
            raise OSError("no network")
        return (folder / address.removeprefix("https://site/")).open("rb")

    monkeypatch.setattr(published, "_open", answer)
    monkeypatch.setitem(published.ADDRESSES, "mnist", ("https://nowhere/", "https://site/"))


def trust(monkeypatch, contents):
    sums = tuple(hashlib.sha256(contents[file]).hexdigest() for file in published.FILES)
    monkeypatch.setitem(published.CHECKSUMS, "mnist", sums)


def put(folder, contents, compress=True):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        path = folder / (name + ".gz" if compress else name)
        path.write_bytes(gzip.compress(content, mtime=0) if compress else content)
    return folder


GOOD = made_up()[published.FILES[0]]


@pytest.mark.parametrize(
    "content", [gzip.compress(GOOD, mtime=0)[:-9], b"\x1f\x8b rubbish"], ids=["cut", "rubbish"]
)
def test_a_damaged_gzip_file_is_refused(elsewhere, monkeypatch, content):
    folder = put(elsewhere / "data" / "mnist", made_up())
    (folder / f"{published.FILES[0]}.gz").write_bytes(content)
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "data"))
    with pytest.raises(McoverError, match=r"train-images-idx3-ubyte.gz is a damaged gzip file"):
        load("mnist")


def test_no_more_is_inflated_than_a_published_file_has(elsewhere, monkeypatch):
    folder = put(elsewhere / "data" / "mnist", made_up())
    (folder / f"{published.FILES[0]}.gz").write_bytes(gzip.compress(GOOD + bytes(1 << 28)))
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "data"))
    monkeypatch.setattr(published, "MOST_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(McoverError, match="is not the published mnist file"):
            load("mnist")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("address", ["http://site/", "file:///etc/", "ftp://site/"])
def test_only_https_is_fetched_from(elsewhere, monkeypatch, address):
    serve(monkeypatch, put(elsewhere / "site", made_up()))
    monkeypatch.setitem(published.ADDRESSES, "mnist", (address,))
    with pytest.raises(McoverError, match="is not an https"):
        load("mnist")


def test_all_published_addresses_are_https():
    assert all(one.startswith("https://") for of in published.ADDRESSES.values() for one in of)


def test_a_redirection_away_from_https_is_not_followed():
    ask = urllib.request.Request("https://site/file")
    handler = published._HttpsOnly()
    given = (ask, None, 302, "Found", {})
    assert handler.redirect_request(*given, "https://mirror/file").full_url.startswith("https")
    with pytest.raises(McoverError, match="is not an https"):
        handler.redirect_request(*given, "http://mirror/file")


def test_a_download_has_an_end(elsewhere, monkeypatch):
    serve(monkeypatch, put(elsewhere / "site", made_up()))
    monkeypatch.setattr(published, "MOST_BYTES", 1000)
    with pytest.raises(McoverError, match="more than 1,000 bytes"):
        load("mnist")


@pytest.mark.parametrize("compress", [True, False])
def test_mnist_is_found_in_the_named_folder(elsewhere, monkeypatch, compress):
    put(elsewhere / "data" / "mnist", made_up(), compress)
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "data"))
    found = load("mnist")
    assert found.train_images.shape == (40, 28, 28)
    assert found.train_images.dtype == np.float32
    assert found.train_labels.dtype == np.int64
    assert 0 <= found.train_images.min() < found.train_images.max() == 1
    scaled = load("mnist", normalize=True)
    back = scaled.test_images * 0.3081 + 0.1307
    np.testing.assert_allclose(back, found.test_images, atol=1e-6)
    assert scaled.train_images.dtype == np.float32


def test_mnist_is_fetched_once_then_found_in_the_cache(elsewhere, monkeypatch):
    serve(monkeypatch, put(elsewhere / "site", made_up()))
    first = load("mnist")
    kept = sorted(path.name for path in (elsewhere / "cache" / "mcover" / "mnist").iterdir())
    assert kept == sorted(f"{name}.gz" for name in published.FILES)
    monkeypatch.setitem(published.ADDRESSES, "mnist", ())
    assert np.array_equal(load("mnist").train_images, first.train_images)


def test_offline_the_message_says_what_to_do(elsewhere):
    with pytest.raises(McoverError) as caught:
        load("mnist")
    message = str(caught.value)
    for word in (
        f"{published.VARIABLE}=FOLDER",
        "FOLDER/mnist/",
        "digits",
        str(elsewhere / "cache"),
    ):
        assert word in message
    assert all(f"{name}.gz" in message for name in published.FILES)


def test_a_changed_file_is_refused_wherever_it_comes_from(elsewhere, monkeypatch):
    serve(monkeypatch, put(elsewhere / "data" / "mnist", made_up(train=30)))
    with pytest.raises(McoverError, match=r"could not be downloaded.*SHA-256"):
        load("mnist")
    assert not (elsewhere / "cache").exists()
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "data"))
    with pytest.raises(McoverError, match=r"train-images-idx3-ubyte.gz is not the published mnist"):
        load("mnist")


def test_a_folder_that_is_not_there_is_said_at_once(elsewhere, monkeypatch):
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "typo"))
    with pytest.raises(McoverError, match="is not a folder"):
        load("mnist")


def test_digits_split_is_fixed_stratified_and_complete():
    digits = load("digits")
    assert np.array_equal(digits.train_images, load("digits").train_images)
    train, test = (np.bincount(part) for part in (digits.train_labels, digits.test_labels))
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    assert np.array_equal(test, (train + test) // 5)
    scaled = load("digits", normalize=True).train_images
    assert abs(scaled.mean()) < 1e-5
    assert abs(scaled.std() - 1) < 1e-5


def fashion(monkeypatch, elsewhere):
    put(elsewhere / "data" / "fashion-mnist", made_up())
    sums = tuple(hashlib.sha256(made_up()[file]).hexdigest() for file in published.FILES)
    monkeypatch.setitem(published.CHECKSUMS, "fashion-mnist", sums)
    monkeypatch.setenv(published.VARIABLE, str(elsewhere / "data"))


@pytest.mark.parametrize("words", ["dress,coat", "3,4", "Dress, 4", " dress , COAT "])
def test_two_classes_are_told_by_name_or_number(elsewhere, monkeypatch, words):
    fashion(monkeypatch, elsewhere)
    whole, pair = load("fashion-mnist"), load(f"fashion-mnist:{words}")
    assert pair.name == "fashion-mnist:dress,coat"
    assert pair.classes == 2
    for part in ("train", "test"):
        labels = getattr(whole, f"{part}_labels")
        kept = (labels == 3) | (labels == 4)
        np.testing.assert_array_equal(getattr(pair, f"{part}_labels"), labels[kept] - 3)
        np.testing.assert_array_equal(
            getattr(pair, f"{part}_images"), getattr(whole, f"{part}_images")[kept]
        )


def test_labels_follow_the_order_of_the_names():
    there, back = load("digits:3,8"), load("digits:8,3")
    np.testing.assert_array_equal(there.train_labels, 1 - back.train_labels)
    np.testing.assert_array_equal(there.train_images, back.train_images)
    three = load("digits:1,7,4")
    assert three.classes == 3
    assert len(subset(three, 31, seed=0).train_labels) == 31


def test_a_part_of_normalized_classes_has_the_scale_of_all():
    whole, pair = (load(name, normalize=True) for name in ("digits", "digits:3,8"))
    kept = np.isin(whole.train_labels, (3, 8))
    np.testing.assert_array_equal(pair.train_images, whole.train_images[kept])


def test_one_class_under_two_names_is_one_class(elsewhere, monkeypatch):
    fashion(monkeypatch, elsewhere)
    with pytest.raises(McoverError, match="'boot' and '9' are one class"):
        load("fashion-mnist:boot,9")
    with pytest.raises(McoverError, match=r"no class 'hat'.*t-shirt, trouser.*boot"):
        load("fashion-mnist:hat,coat")


def test_images_are_binarized_by_their_own_median():
    images = np.array(
        [[[0, 0], [0, 1]], [[0, 0], [0.2, 1]], [[1, 2], [3, 4]], [[5, 5], [5, 5]]], dtype=np.float32
    )
    found = signs(images)
    # Above the median is +1, at it or below it −1; a median of 0 is no exception.
    expected = [[-1, -1, -1, 1], [-1, -1, 1, 1], [-1, -1, 1, 1], [-1, -1, -1, -1]]
    assert found.reshape(4, 4).tolist() == expected
    assert found.dtype == np.float32


def numbered(per_class=12, classes=10):
    """A data set whose images contain their index."""
    count = per_class * classes
    images = np.arange(count, dtype=np.float32).reshape(-1, 1, 1)
    labels = np.arange(count) % classes
    return Dataset("numbered", images, labels, -images[:5], labels[:5], classes)


@given(st.integers(1, 120), st.integers(0, 5))
def test_subset_and_holdout_are_balanced_and_never_overlap(count, seed):
    whole = numbered()
    small = subset(whole, count, seed)
    assert len(small.train_labels) == count
    assert np.ptp(np.bincount(small.train_labels, minlength=10)) <= 1
    assert np.array_equal(small.train_images.ravel() % 10, small.train_labels)
    assert small.test_images is whole.test_images
    if count < 120:
        held = holdout(whole, count, seed)
        sides = [held.train_images.ravel(), held.test_images.ravel()]
        assert np.array_equal(np.sort(np.concatenate(sides)), np.arange(120))
        assert np.array_equal(held.test_images, small.train_images)


def test_subsets_follow_the_seed():
    draws = [subset(numbered(), 30, seed).train_images.ravel().tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_wrong_labels_are_as_many_as_said_and_any_other_class():
    """The law: a fixed number, every image as likely, every other class as likely."""
    whole, draws = numbered(), 400
    wrong, shifts = np.zeros(120), np.zeros(10)
    for seed in range(draws):
        noisy = mislabel(whole, 0.2, seed)
        assert noisy.test_labels is whole.test_labels
        assert noisy.train_images is whole.train_images
        shift = (noisy.train_labels - whole.train_labels) % 10
        assert np.count_nonzero(shift) == 24
        wrong += shift != 0
        shifts += np.bincount(shift[shift != 0], minlength=10)
    assert shifts[0] == 0
    # Pearson's statistic: 8 degrees of freedom; and 119 of a hypergeometric draw each time.
    expected = 24 * draws / 9
    assert ((shifts[1:] - expected) ** 2 / expected).sum() < 30
    spread = (wrong / draws - 0.2) / np.sqrt(0.2 * 0.8 / draws)
    assert np.abs(spread).max() < 4.5
    assert 0.7 < spread.var() < 1.3


def test_wrong_labels_follow_the_seed_and_reach_the_other_part_only_if_asked():
    held = holdout(numbered(), 40, 0)
    draws = [mislabel(held, 0.4, seed).train_labels.tolist() for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]
    both = mislabel(held, 0.4, 3, both=True)
    assert both.train_labels.tolist() == draws[0]
    assert np.count_nonzero(both.test_labels != held.test_labels) == 16
    nothing = mislabel(held, 0.0, 3, both=True)
    assert np.array_equal(nothing.train_labels, held.train_labels)
    assert np.array_equal(nothing.test_labels, held.test_labels)
    two = lopsided()
    assert np.array_equal(mislabel(two, 0.99, 0).train_labels, 1 - two.train_labels)


def test_pooled_pixels_are_means_of_squares():
    rng = np.random.default_rng(0)
    images = rng.random((3, 4, 6), dtype=np.float32)
    labels = np.arange(3)
    small = pooled(Dataset("d", images, labels, images[:2], labels[:2], 3), 2)
    for n, row, column in np.ndindex(3, 2, 3):
        square = [images[n, 2 * row + a, 2 * column + b] for a in (0, 1) for b in (0, 1)]
        assert small.train_images[n, row, column] == pytest.approx(sum(square) / 4)
    assert small.train_images.dtype == np.float32
    np.testing.assert_array_equal(small.test_images, small.train_images[:2])


def lopsided():
    labels = np.array([0] * 9 + [1] * 2)
    images = np.zeros((11, 1, 1), dtype=np.float32)
    return Dataset("lopsided", images, labels, images, labels, 2)
