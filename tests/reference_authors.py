"""The authors' published GCN script re-told in numpy float64 loops: two layers, labelled rows of Z alone move.

Nothing here is shared with the library. With ``exact`` Z2 is solved to the end, where the script stops FISTA early;
``W`` is (n_{l-1}, n_l) as in the paper.
"""

from __future__ import annotations

import numpy as np

from reference_gcn import dense_adjacency, relu


class ReferenceScript:
    def __init__(self, edges, x, y, train, test, W, penalty=0.0, every=50, exact=False):
        self.A = dense_adjacency(edges, len(x))
        self.x, self.train, self.penalty, self.every = x, np.flatnonzero(train), penalty, every
        self.W1, self.W2 = (w.copy() for w in W)
        self.onehot = np.eye(W[1].shape[1])[y[self.train]]
        self.Z1 = relu(self.A @ x @ self.W1)
        self.Z2 = (self.A @ self.Z1 @ self.W2)[self.train]
        self.Z1[test] = 0
        self.exact = exact
        self.U, self.rho, self.epoch = np.zeros_like(self.Z2), 1e-3, 0

    def omega(self, W):
        return self.penalty / 2 * np.sqrt(np.sum((W * W) ** 2))

    def omega_gradient(self, W):
        return self.penalty * W**3 / np.sqrt(np.sum(W**4)) if self.penalty else np.zeros_like(W)

    def rows(self, Z, W):
        return (self.A @ Z @ W)[self.train]

    def hidden(self, Z1, W1):
        return self.rho / 2 * np.sum((Z1[self.train] - relu(self.rows(self.x, W1))) ** 2)

    def last(self, Z1, W2):
        r = self.Z2 - self.rows(Z1, W2)
        return np.sum((self.U + self.rho / 2 * r) * r)

    @staticmethod
    def stepped(value, old, gradient, t):
        for _ in range(33):
            new = old - gradient / t
            move = new - old
            if value(new) <= value(old) + np.sum((gradient + t / 2 * move) * move):
                return new
            t *= 2
        return old

    def update_W1(self):
        H = self.rows(self.x, self.W1)
        error = self.rho * (relu(H) - self.Z1[self.train]) * (H > 0)
        gradient = (self.A @ self.x)[self.train].T @ error + self.omega_gradient(self.W1)
        self.W1 = self.stepped(lambda W: self.hidden(self.Z1, W) + self.omega(W), self.W1, gradient, 1.0)

    def update_W2(self):
        error = self.rho * (self.rows(self.Z1, self.W2) - self.Z2) - self.U
        gradient = (self.A @ self.Z1)[self.train].T @ error + self.omega_gradient(self.W2)
        self.W2 = self.stepped(lambda W: self.last(self.Z1, W) + self.omega(W), self.W2, gradient, 1e-2)

    def update_Z1(self):
        error = np.zeros((len(self.x), self.W2.shape[1]))
        error[self.train] = self.rho * (self.rows(self.Z1, self.W2) - self.Z2) - self.U
        gradient = (self.A.T @ error @ self.W2.T)[self.train]
        gradient += self.rho * (self.Z1[self.train] - relu(self.rows(self.x, self.W1)))

        def whole(rows):
            Z1 = self.Z1.copy()
            Z1[self.train] = rows
            return Z1

        def value(rows):
            return self.hidden(whole(rows), self.W1) + self.last(whole(rows), self.W2)

        self.Z1 = whole(self.stepped(value, self.Z1[self.train], gradient, 1e-3))

    def update_Z2(self):
        if self.exact:
            self.solve_Z2()
            return
        m, z, zeta, lam, value = self.rows(self.Z1, self.W2), self.Z2, self.Z2, 1.0, np.inf
        for _ in range(50):
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            old = value
            value = -np.sum(self.onehot * np.log(p + 1e-10))
            value += self.rho / 2 * np.sqrt(np.sum((z - m + self.U / self.rho) ** 4))
            if abs(value - old) < 1e-3:
                break
            before, lam = lam, (1 + np.sqrt(1 + 4 * lam**2)) / 2
            gamma, last = (1 - before) / lam, zeta
            zeta = (-self.U + self.rho * m + z / 5 - (p - self.onehot)) / (self.rho + 1 / 5)
            z = (1 - gamma) * zeta + gamma * last
        self.Z2 = z

    def solve_Z2(self):
        v = self.rows(self.Z1, self.W2) - self.U / self.rho
        for i, target in enumerate(self.onehot):
            z = np.where(target > 0, 1.0, -1.0)
            for _ in range(500):
                p = np.exp(z - z.max())
                p /= p.sum()
                gradient = p - target + self.rho * (z - v[i])
                hessian = np.diag(p) - np.outer(p, p) + self.rho * np.eye(len(z))
                move = np.linalg.solve(hessian, gradient)
                z = z - move / max(1.0, np.abs(move).max())
                if np.abs(move).max() < 1e-13 * (1 + np.abs(z).max()):
                    break
            self.Z2[i] = z

    def iterate(self):
        for update in (self.update_Z2, self.update_W2, self.update_Z1, self.update_W1):
            update()
        for update in (self.update_W1, self.update_Z1, self.update_W2, self.update_Z2):
            update()
        self.U = self.U + self.rho * (self.Z2 - self.rows(self.Z1, self.W2))
        self.epoch += 1
        if self.epoch % self.every == 0:
            self.rho = min(10 * self.rho, 1.0)
