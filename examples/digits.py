"""
Digits in ten lines
===================

Train without back-propagation and read the certificate.
"""

from dladmm import MLPClassifier, datasets

data = datasets.load("digits")
clf = MLPClassifier(hidden_layer_sizes=(100, 100), random_state=0)
clf.fit(data.x_train.numpy(), data.y_train.numpy())

# %%
# The certificate is recomputed from the raw data when the run is over.
print(f"test accuracy {clf.score(data.x_test.numpy(), data.y_test.numpy()):.3f}")
print(clf.status_)
print(clf.certificate_)
