"""A slow, literal dlADMM for MLPs: Algorithm 2 of the paper with its loops, in numpy float64.

Nothing here is shared with the library. phi is evaluated whole each time, backtracking is a loop that compares
phi with its majoriser as printed in Algorithms 3, 4, 6 and 7, z_L is found by Newton's method on the full
softmax system, row by row. Samples are rows, so the paper's ``W a + b`` is ``a @ W.T + b``.
"""

from __future__ import annotations

import numpy as np


def relu(z):
    return np.maximum(z, 0.0)


class ReferenceMLP:
    """State and updates in the paper's names; lists are indexed by layer, ``a[0]`` is the input."""

    def __init__(self, x, y, W, b, rho, nu, lam=0.0, start=1.0, growth=2.0, solver="quadratic", damping=0.0):
        self.L = len(W)
        self.W = [None, *[w.copy() for w in W]]
        self.b = [None, *[v.copy() for v in b]]
        self.onehot = np.eye(W[-1].shape[0])[y]
        self.rho, self.nu, self.lam, self.start, self.growth = rho, nu, lam, start, growth
        self.solver, self.damping = solver, damping
        self.a, self.z = [x], [None]
        for l in range(1, self.L + 1):
            self.z.append(self.a[l - 1] @ self.W[l].T + self.b[l])
            if l < self.L:
                self.a.append(relu(self.z[l]))
        self.u = -self.grad_risk(self.z[self.L])

    def probabilities(self, z):
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def risk(self, z):
        shifted = z - z.max(1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(1)) - (self.onehot * shifted).sum(1)).sum())

    def grad_risk(self, z):
        return self.probabilities(z) - self.onehot

    def phi(self):
        total = 0.0
        for l in range(1, self.L):
            total += self.nu / 2 * np.sum((self.z[l] - self.a[l - 1] @ self.W[l].T - self.b[l]) ** 2)
            total += self.nu / 2 * np.sum((self.a[l] - relu(self.z[l])) ** 2)
        r = self.residual()
        return total + np.sum(self.u * r) + self.rho / 2 * np.sum(r**2)

    def residual(self):
        return self.z[self.L] - self.a[self.L - 1] @ self.W[self.L].T - self.b[self.L]

    def lagrangian(self):
        omega = sum(self.lam / 2 * np.sum(self.W[l] ** 2) for l in range(1, self.L + 1))
        return self.risk(self.z[self.L]) + omega + self.phi()

    def gradient_of_prediction(self, l):
        """d phi / d (W_l a_{l-1} + b_l), one row per sample."""
        prediction = self.a[l - 1] @ self.W[l].T + self.b[l]
        if l == self.L:
            return self.rho * (prediction - self.z[l]) - self.u
        return self.nu * (prediction - self.z[l])

    def update_W(self, l):
        old = self.W[l].copy()
        gradient = self.gradient_of_prediction(l).T @ self.a[l - 1]
        if self.solver == "exact":
            c = self.rho if l == self.L else self.nu
            gram = self.a[l - 1].T @ self.a[l - 1]
            shift = self.damping * c * np.trace(gram) / len(gram)
            system = c * gram + (shift + self.lam) * np.eye(len(gram))
            self.W[l] = old - np.linalg.solve(system, (gradient + self.lam * old).T).T
            return
        phi_old, alpha = self.phi(), self.start
        while True:
            zeta = (alpha * old - gradient) / (alpha + self.lam)
            self.W[l] = zeta
            P = phi_old + np.sum(gradient * (zeta - old)) + alpha / 2 * np.sum((zeta - old) ** 2)
            if not self.phi() > P:
                return
            alpha *= self.growth

    def update_b(self, l):
        """The exact minimiser: the paper's gradient step with the Lipschitz constant of N samples."""
        c = self.rho if l == self.L else self.nu
        gradient = self.gradient_of_prediction(l).sum(0)
        self.b[l] = self.b[l] - gradient / (c * len(self.a[0]))

    def update_z(self, l):
        m = self.a[l - 1] @ self.W[l].T + self.b[l]
        a = self.a[l]
        new = np.empty_like(m)
        for index in np.ndindex(*m.shape):
            candidates = [min(m[index], 0.0), max((m[index] + a[index]) / 2, 0.0)]
            values = [(z - m[index]) ** 2 + (a[index] - max(z, 0.0)) ** 2 for z in candidates]
            new[index] = candidates[int(np.argmin(values))]
        self.z[l] = new

    def update_z_last(self):
        v = self.a[self.L - 1] @ self.W[self.L].T + self.b[self.L] - self.u / self.rho
        z = np.empty_like(v)
        for i in range(len(v)):
            point = v[i].copy()

            def value(p, i=i):
                row = self.onehot[i]
                top = p.max()
                log_sum = np.log(np.exp(p - top).sum()) + top
                return log_sum - row @ p + self.rho / 2 * np.sum((p - v[i]) ** 2)

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
        self.z[self.L] = z

    def update_a(self, l):
        old = self.a[l].copy()
        gradient = self.gradient_of_prediction(l + 1) @ self.W[l + 1] + self.nu * (old - relu(self.z[l]))
        if self.solver == "exact":
            c = self.rho if l + 1 == self.L else self.nu
            system = c * self.W[l + 1].T @ self.W[l + 1] + self.nu * np.eye(old.shape[1])
            self.a[l] = old - np.linalg.solve(system, gradient.T).T
            return
        phi_old, t = self.phi(), self.start
        while True:
            beta = old - gradient / t
            self.a[l] = beta
            Q = phi_old + np.sum(gradient * (beta - old)) + t / 2 * np.sum((beta - old) ** 2)
            if not self.phi() > Q:
                return
            t *= self.growth

    def paper_order(self):
        """Algorithm 2, lines 4 to 22, as (variable, layer)."""
        order = []
        for l in range(self.L, 0, -1):
            order += [("a", l), ("z", l)] if l < self.L else [("z", l)]
            order += [("b", l), ("W", l)]
        for l in range(1, self.L + 1):
            order += [("W", l), ("b", l)]
            order += [("z", l), ("a", l)] if l < self.L else [("z", l)]
        return order

    def iterate(self, order=None):
        """One iteration: the updates in the paper's order, or in the one that is given, then the dual step."""
        for variable, l in self.paper_order() if order is None else order:
            if variable == "z" and l == self.L:
                self.update_z_last()
            else:
                getattr(self, f"update_{variable}")(l)
        self.u = self.u + self.rho * self.residual()
