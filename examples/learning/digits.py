"""Real data for the examples: scikit-learn's 1797 handwritten digits, a fifth of them held back for testing."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load(side=8):
    """Training pictures, their labels, test pictures, their labels. A picture has `side` x `side` numbers, 0 to 1."""
    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).reshape(-1, 8, 8).astype(np.float32)
    pictures = pictures.repeat(side // 8, axis=1).repeat(side // 8, axis=2)
    train, test, train_labels, test_labels = train_test_split(
        pictures, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return train, train_labels, test, test_labels
