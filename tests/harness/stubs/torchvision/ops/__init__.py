"""Operations of torchvision."""
