"""MNIST and Fashion-MNIST as the paper has them; their files are looked for where ``dladmm datasets`` puts them."""

from benchopt import BaseDataset

from dladmm import datasets


class Dataset(BaseDataset):
    name = "images"
    requirements = ["pip::dladmm"]
    parameters = {"data": ["mnist", "fashion_mnist"]}

    def get_data(self):
        data = datasets.load(self.data)
        return {
            "X_train": data.x_train.numpy(),
            "y_train": data.y_train.numpy(),
            "X_test": data.x_test.numpy(),
            "y_test": data.y_test.numpy(),
        }
