"""A slow, literal dlADMM for GCNs: Algorithm 5 of the paper with its loops, in numpy float64.

Nothing here is shared with the library. A~ is dense and built entry by entry, psi is evaluated whole each time, and
backtracking is a loop that compares psi with its majoriser. ``W[l]`` is (n_{l-1}, n_l) as in the paper.
"""

from __future__ import annotations

import numpy as np


def dense_adjacency(edges, n):
    """``(D+I)^-1/2 (A+I) (D+I)^-1/2``, entry by entry."""
    A = np.zeros((n, n))
    for i, j in edges:
        if i != j:
            A[i, j] = A[j, i] = 1.0
    degree = A.sum(1)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = (A[i, j] + (i == j)) / np.sqrt((degree[i] + 1) * (degree[j] + 1))
    return out


def relu(z):
    return np.maximum(z, 0.0)


class ReferenceGCN:
    """State and updates in the paper's names; lists are indexed by layer, ``Z[0]`` is the input."""

    def __init__(self, edges, x, y, labelled, W, rho, mu, lam=0.0, start=1.0, growth=2.0):
        self.A = dense_adjacency(edges, len(x))
        self.L = len(W)
        self.W = [None, *[w.copy() for w in W]]
        self.onehot = np.eye(W[-1].shape[1])[y]
        self.labelled = labelled
        self.rho, self.mu, self.lam, self.start, self.growth = rho, mu, lam, start, growth
        self.Z = [x]
        for l in range(1, self.L + 1):
            self.Z.append(self.link(l))
        self.U = -self.grad_risk(self.Z[self.L])

    def link(self, l):
        H = self.A @ self.Z[l - 1] @ self.W[l]
        return H if l == self.L else relu(H)

    def risk(self, z):
        total = 0.0
        for i in np.flatnonzero(self.labelled):
            top = z[i].max()
            total += np.log(np.exp(z[i] - top).sum()) + top - self.onehot[i] @ z[i]
        return total

    def grad_risk(self, z):
        gradient = np.zeros_like(z)
        for i in np.flatnonzero(self.labelled):
            p = np.exp(z[i] - z[i].max())
            gradient[i] = p / p.sum() - self.onehot[i]
        return gradient

    def psi(self):
        total = sum(self.mu / 2 * np.sum((self.Z[l] - self.link(l)) ** 2) for l in range(1, self.L))
        r = self.Z[self.L] - self.link(self.L)
        return total + np.sum(self.U * r) + self.rho / 2 * np.sum(r**2)

    def lagrangian(self):
        omega = sum(self.lam / 2 * np.sum(w**2) for w in self.W[1:])
        return self.risk(self.Z[self.L]) + omega + self.psi()

    def gradient_of_link(self, l):
        """d psi / d (A~ Z_{l-1} W_l); relu has derivative 0 at 0."""
        H = self.A @ self.Z[l - 1] @ self.W[l]
        if l == self.L:
            return self.rho * (H - self.Z[l]) - self.U
        return self.mu * (relu(H) - self.Z[l]) * (H > 0)

    def update_W(self, l):
        old = self.W[l].copy()
        gradient = (self.A @ self.Z[l - 1]).T @ self.gradient_of_link(l)
        psi_old, sigma = self.psi(), self.start
        while True:
            new = (sigma * old - gradient) / (sigma + self.lam)
            self.W[l] = new
            P = psi_old + np.sum(gradient * (new - old)) + sigma / 2 * np.sum((new - old) ** 2)
            if not self.psi() > P:
                return
            sigma *= self.growth

    def update_Z(self, l):
        old = self.Z[l].copy()
        gradient = self.mu * (old - self.link(l)) + self.A.T @ self.gradient_of_link(l + 1) @ self.W[l + 1].T
        psi_old, delta = self.psi(), self.start
        while True:
            new = old - gradient / delta
            self.Z[l] = new
            Q = psi_old + np.sum(gradient * (new - old)) + delta / 2 * np.sum((new - old) ** 2)
            if not self.psi() > Q:
                return
            delta *= self.growth

    def update_Z_last(self):
        v = self.link(self.L) - self.U / self.rho
        z = v.copy()
        for i in np.flatnonzero(self.labelled):
            point = v[i].copy()

            def value(p, i=i):
                top = p.max()
                log_sum = np.log(np.exp(p - top).sum()) + top
                return log_sum - self.onehot[i] @ p + self.rho / 2 * np.sum((p - v[i]) ** 2)

            for _ in range(200):
                p = np.exp(point - point.max())
                p /= p.sum()
                gradient = p - self.onehot[i] + self.rho * (point - v[i])
                hessian = np.diag(p) - np.outer(p, p) + self.rho * np.eye(len(p))
                move = np.linalg.solve(hessian, gradient)
                if np.abs(move).max() < 1e-15 * (1 + np.abs(point).max()):
                    break
                step = 1.0
                far = np.abs(move).max() > 1e-4  # near the solution the values differ by rounding only
                while far and step > 1e-8 and value(point - step * move) > value(point):
                    step /= 2
                point = point - step * move
            z[i] = point
        self.Z[self.L] = z

    def iterate(self):
        for l in range(self.L, 0, -1):
            if l < self.L:
                self.update_Z(l)
            else:
                self.update_Z_last()
            self.update_W(l)
        for l in range(1, self.L + 1):
            self.update_W(l)
            if l < self.L:
                self.update_Z(l)
            else:
                self.update_Z_last()
        self.U = self.U + self.rho * (self.Z[self.L] - self.link(self.L))
