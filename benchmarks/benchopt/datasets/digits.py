"""The embedded digits: 8 x 8 images, no download."""

from benchopt import BaseDataset

from dladmm import datasets


class Dataset(BaseDataset):
    name = "digits"
    requirements = ["pip::dladmm"]

    def get_data(self):
        data = datasets.load("digits")
        return {
            "X_train": data.x_train.double().numpy(),
            "y_train": data.y_train.numpy(),
            "X_test": data.x_test.double().numpy(),
            "y_test": data.y_test.numpy(),
        }
