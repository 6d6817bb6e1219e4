"""The shapes of the paper's networks as plain numbers, which settings name; importable without torch."""

POOL = 0  # in a list of channels: a 2×2 max-pool
HE = 2**0.5  # scale of initial weights that keeps the variance of signals behind ReLU (He et al.)
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
VGG_LIKE = (64, 64, 64, 0, 128, 128, 128, 0, 256, 256, 256, 0, 512, 512)  # two less, on larger maps
RESNET50 = (3, 4, 6, 3)
