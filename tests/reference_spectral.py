"""StreamingADMM's steps on one small residual network, literally, in numpy; nothing is shared with the library.

``z1 = x W1^T + b1, h1 = tanh z1, z2 = h1 W2^T + b2, h2 = h1 + tanh z2, z3 = h2 W3^T + b3``, mean cross-entropy. W1 and
W2 are maps; W3 is the last one, and takes Adam's step with the biases.
"""

import numpy as np

D = 1.0
MAPS = ("W1", "W2")


def gradients(p, x, y):
    """Of the loss, and the inputs of the two maps."""
    n = len(x)
    h1 = np.tanh(x @ p["W1"].T + p["b1"])
    t = np.tanh(h1 @ p["W2"].T + p["b2"])
    h2 = h1 + t
    z3 = h2 @ p["W3"].T + p["b3"]
    e = np.exp(z3 - z3.max(1, keepdims=True))
    f3 = e / e.sum(1, keepdims=True)
    f3[np.arange(n), y] -= 1
    f3 /= n
    up = f3 @ p["W3"]
    f2 = up * (1 - t**2)
    f1 = (up + f2 @ p["W2"]) * (1 - h1**2)
    g = {"W1": f1.T @ x, "b1": f1.sum(0), "W2": f2.T @ h1, "b2": f2.sum(0), "W3": f3.T @ h2, "b3": f3.sum(0)}
    return g, {"W1": x, "W2": h1}


def factor(C):
    """S with S S^T = (1 + D) (C / mean eigenvalue + D)^-1: the inverse Cholesky factor."""
    n = len(C)
    M = C / (np.trace(C) / n) + D * np.eye(n)
    L = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            s = M[i, j] - sum(L[i, k] * L[j, k] for k in range(j))
            L[i, j] = np.sqrt(s) if i == j else s / L[j, j]
    return np.sqrt(1 + D) * np.linalg.inv(L).T


def msgn(G):
    X = G / np.sqrt((G**2).sum())
    if G.shape[0] > G.shape[1]:
        X = X.T
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
    return X.T if G.shape[0] > G.shape[1] else X


def run(p, batches, lr, total_steps=None, weight_decay=0.0):
    """The parameters after a step on each batch."""
    p = {name: value.astype(np.float64).copy() for name, value in p.items()}
    zeros = {name: np.zeros_like(value) for name, value in p.items()}
    momentum, mean, square = ({n: v.copy() for n, v in zeros.items()} for _ in range(3))
    C, S, h = {}, {}, 0
    for k, (x, y) in enumerate(batches, 1):
        g, A = gradients(p, x, y)
        if k <= 8 or (k % 4 == 0 and k <= 128):
            h += 1
            share = 4 / (h + 3)
            for name in MAPS:
                now = A[name].T @ A[name] / len(x)
                C[name] = now if h == 1 else (1 - share) * C[name] + share * now
                if h in (1, 2, 3, 4, 6, 9, 13, 19, 28, 42):
                    S[name] = factor(C[name])
        if total_steps is None:
            length = lr * min(1, k / 50)
        else:
            rise, fall = k / max(1, 0.05 * total_steps), (total_steps + 1 - k) / max(1, 0.95 * total_steps)
            length = lr * max(0, min(1, rise, fall))
        for name in p:
            if p[name].ndim > 1:
                p[name] = p[name] * (1 - length * weight_decay)
            if name in MAPS:
                momentum[name] = 0.95 * momentum[name] + 0.05 * g[name]
                G = 0.05 * g[name] + 0.95 * momentum[name]
                step = msgn(G @ S[name]) @ S[name].T
                p[name] = p[name] - length * 0.2 * np.sqrt(max(p[name].shape)) * step
            else:
                mean[name] = 0.9 * mean[name] + 0.1 * g[name]
                square[name] = 0.95 * square[name] + 0.05 * g[name] ** 2
                m, v = mean[name] / (1 - 0.9**k), square[name] / (1 - 0.95**k)
                p[name] = p[name] - 0.3 * length * m / (np.sqrt(v) + 1e-8)
    return p
