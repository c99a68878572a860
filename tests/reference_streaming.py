"""A slow, literal streaming mode for relu MLPs with softmax cross-entropy: loops over rows, numpy float64.

Nothing here is shared with the library. ``docs/streaming.md`` has the formulas in this order.
"""

from __future__ import annotations

import numpy as np


class ReferenceStreaming:
    def __init__(
        self,
        W,
        b,
        n_batches,
        damping=10.0,
        beta=0.5,
        c=1.5,
        kappa=0.3,
        rel=0.5,
        smooth=0.1,
        lam=0.0,
        sketches=None,
        slowing=None,
    ):
        self.slowing = slowing  # of a run without a plan
        self.sketches = sketches  # of every layer, where the metrics are thin
        self.W, self.b = [w.copy() for w in W], [v.copy() for v in b]
        self.average = [(w.copy(), v.copy()) for w, v in zip(W, b, strict=True)]
        self.K, self.damping, self.beta, self.c, self.kappa = n_batches, damping, beta, c, kappa
        self.rel, self.smooth, self.lam, self.leash = rel, smooth, lam, kappa
        self.k = self.h = 0
        self.next_inverse = 1
        self.g, self.stats, self.metric = [None] * len(W), [None] * len(W), [None] * len(W)
        self.M = [(np.zeros_like(w), np.zeros_like(v)) for w, v in zip(W, b, strict=True)]
        self.means = None

    def step(self, x, y):
        self.k += 1
        n, L, K = len(x), len(self.W), self.W[-1].shape[0]
        heavy = self.k <= 8 or self.k % (4 if self.k <= 128 else 8) == 0
        self.h += heavy
        if heavy and self.k >= self.next_inverse:
            self.next_inverse = 2 * self.k
            if self.k > 1:
                self.factor()
        A, Z = [x], []
        for l in range(L):
            Z.append(np.array([self.W[l] @ a + self.b[l] for a in A[l]]))
            A.append(np.maximum(Z[l], 0.0))
        t = np.array([[(1 - self.smooth) * (j == label) + self.smooth / K for j in range(K)] for label in y])
        P = np.array([np.exp(z - z.max()) / np.exp(z - z.max()).sum() for z in Z[-1]])
        F = P - t
        for l in reversed(range(L)):
            gW = sum(np.outer(F[i], A[l][i]) for i in range(n)) / n
            gb = sum(F[i] for i in range(n)) / n
            self.g[l] = (gW, gb)
            if heavy:
                w = 4 / (self.h + 3)
                G, mu = sum(np.outer(a, a) for a in A[l]) / n, sum(a for a in A[l]) / n
                now = (G, mu, np.mean(F**2))
                self.stats[l] = (
                    now
                    if self.stats[l] is None
                    else tuple((1 - w) * o + w * new for o, new in zip(self.stats[l], now, strict=True))
                )
            if l:
                F = np.array([(self.W[l].T @ F[i]) * (Z[l - 1][i] > 0) for i in range(n)])
        if self.k == 1:
            self.factor()
        total = []
        for l in range(L):
            (gW, gb), (inverse, mu, s) = self.g[l], self.metric[l]
            gW = gW + self.lam * self.W[l]
            MW = -(gW - np.outer(gb, mu)) @ inverse
            now = (MW / s, (-gb - MW @ mu) / s)
            keep = 0.0 if self.k == 1 else self.beta
            self.M[l] = tuple(keep * o + (1 - keep) * new for o, new in zip(self.M[l], now, strict=True))
            total.append((gW, gb))
        M = self.M
        if heavy:
            self.measure(A, Z, P, t, M, total, n)
        left = 1 - (self.k - 1) / self.K if self.slowing is None else 1 / np.sqrt(1 + self.k / self.slowing)
        step = self.eta * left
        for l in range(L):
            self.W[l] += step * M[l][0]
            self.b[l] += step * M[l][1]
            if heavy:
                w = 9 / (self.h + 8)
                self.average[l] = tuple(
                    (1 - w) * o + w * p for o, p in zip(self.average[l], (self.W[l], self.b[l]), strict=True)
                )

    def factor(self):
        for l, (G, mu, v) in enumerate(self.stats):
            C = G - np.outer(mu, mu)
            eigenvalue = np.trace(C) / len(C)
            if self.sketches is not None:
                S = self.sketches[l]
                eigenvalue = np.mean([s @ C @ s for s in S.T]) / len(C)
                C = C @ S @ np.linalg.pinv(S.T @ C @ S, rcond=1e-12, hermitian=True) @ S.T @ C
            inverse = np.linalg.inv(C + self.damping * eigenvalue * np.eye(len(C)))
            self.metric[l] = (inverse, mu, np.sqrt(v + 1e-20))

    def measure(self, A, Z, P, t, M, total, n):
        L, q, relative = len(self.W), 0.0, 0.0
        for i in range(n):
            delta = np.zeros_like(A[0][i])
            for l in range(L):
                delta = M[l][0] @ A[l][i] + M[l][1] + self.W[l] @ delta
                delta = delta * (Z[l][i] > 0) if l < L - 1 else delta
            q += (P[i] @ delta**2 - (P[i] @ delta) ** 2) / n
        q += self.lam * sum(np.sum(MW**2) for MW, _ in M)
        for l in range(L - 1):
            relative += np.linalg.norm(A[l] @ M[l][0].T + M[l][1]) / np.linalg.norm(Z[l])
        p = -sum(np.sum(g[0] * m[0]) + g[1] @ m[1] for g, m in zip(total, M, strict=True))
        loss = -np.sum(t * np.log(P)) / n
        w = max(0.1, 1 / self.h)
        old = (p, q, loss) if self.means is None else self.means
        self.means = tuple((1 - w) * o + w * new for o, new in zip(old, (p, q, loss), strict=True))
        shaken = loss > 1.5 * self.means[2] + 0.5
        self.leash = self.leash / 4 if shaken else min(self.kappa, 1.1 * self.leash)
        own = q / p if p > 0 else 0.0
        curvature = max(own, self.means[1] / max(self.means[0], 1e-30))
        self.eta = min(self.c / curvature, np.sqrt(self.leash / q), self.rel / relative)
