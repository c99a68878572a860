"""A slow, literal ADMM of Taylor et al. (2016) for MLPs with relu, in numpy float64, on the reference of dlADMM."""

from __future__ import annotations

import numpy as np

from reference import ReferenceMLP, relu


class ReferenceTaylor(ReferenceMLP):
    """Their Algorithm 1: one forward pass of exact minimisers; u belongs to z_L alone."""

    def __init__(self, x, y, W, b, rho, beta, gamma, warmup):
        super().__init__(x, y, W, b, rho, beta)
        self.gamma, self.warmup, self.k = gamma, warmup, 0
        self.u = np.zeros_like(self.u)

    def update_W(self, l):
        """Least squares of z_l on a_{l-1} and a constant; among the minimisers the one whose W is nearest to before."""
        A, z = self.a[l - 1] - self.a[l - 1].mean(0), self.z[l] - self.z[l].mean(0)
        self.W[l] = self.W[l] + np.linalg.lstsq(A, z - A @ self.W[l].T, rcond=1e-12)[0].T
        self.b[l] = (self.z[l] - self.a[l - 1] @ self.W[l].T).mean(0)

    def update_a(self, l):
        c = self.rho if l + 1 == self.L else self.nu
        W, target = self.W[l + 1], self.z[l + 1] - self.b[l + 1]
        for i in range(len(target)):
            right = c * W.T @ target[i] + self.gamma * relu(self.z[l][i])
            self.a[l][i] = np.linalg.solve(c * W.T @ W + self.gamma * np.eye(W.shape[1]), right)

    def update_z(self, l):
        m, a = self.a[l - 1] @ self.W[l].T + self.b[l], self.a[l]
        for index in np.ndindex(*m.shape):
            mean = (self.nu * m[index] + self.gamma * a[index]) / (self.nu + self.gamma)
            candidates = [min(m[index], 0.0), max(mean, 0.0)]
            values = [
                self.nu * (z - m[index]) ** 2 + self.gamma * (a[index] - max(z, 0.0)) ** 2 for z in candidates
            ]
            self.z[l][index] = candidates[int(np.argmin(values))]

    def lagrangian(self):
        total = self.risk(self.z[self.L]) + np.sum(self.u * self.residual())
        total += self.rho / 2 * np.sum(self.residual() ** 2)
        for l in range(1, self.L):
            total += self.nu / 2 * np.sum((self.z[l] - self.a[l - 1] @ self.W[l].T - self.b[l]) ** 2)
            total += self.gamma / 2 * np.sum((self.a[l] - relu(self.z[l])) ** 2)
        return total

    def iterate(self):
        for l in range(1, self.L):
            self.update_W(l)
            self.update_a(l)
            self.update_z(l)
        self.update_W(self.L)
        self.update_z_last()
        self.k += 1
        if self.k > self.warmup:
            self.u = self.u + self.rho * self.residual()
