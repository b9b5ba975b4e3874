"""Factorizes a matrix of ratings. No rank holds the whole matrix, or its whole factors.

rueda run -np 4 python examples/python/matrix_factorisation.py [--blocks 4]

R ≈ W·Hᵀ, where some entries of R are known. The matrix is divided into B by B blocks. In sub-epoch s, row block p is
paired with column block (p + s) mod B. These blocks share neither rows nor columns, so B workers can train on them at
once without reading each other's changes. Then each worker passes its columns' factors on around the ring (Gemulla,
Nijkamp, Haas and Sismanis, "Large-scale matrix factorization with distributed stochastic gradient descent", KDD 2011,
section 4, algorithm 2). Each of P ranks has B/P row blocks with their ratings, and B/P column blocks: 1/P of all. The
blocks of one sub-epoch are independent, so the result has the same bits for any P that divides B.
"""

import argparse
import hashlib

import numpy as np
import rueda

RANK = 8  # of the factors
KNOWN = 0.1  # of the entries
NOISE = 0.1


def ratings(rows: range, columns: int):
    """Makes rows' entries: known ones, and about as many unknown ones, each as arrays of row, column and value.

    Generates row by row, so that the entries do not depend on the blocks. A real program reads its rows here.
    """
    columns_truth = np.random.default_rng(0).standard_normal((columns, RANK)) / RANK**0.5
    parts = []
    for number, row in enumerate(rows):
        draw = np.random.default_rng([1, row])
        truth = columns_truth @ draw.standard_normal(RANK) + NOISE * draw.standard_normal(columns)
        chance = draw.random(columns)
        for kind, here in enumerate([chance < KNOWN, chance > 1 - KNOWN]):
            column = np.nonzero(here)[0]
            parts.append((kind, np.full(len(column), number), column, truth[column]))
    return [
        (
            np.concatenate([row for which, row, _, _ in parts if which == kind]),
            np.concatenate([column for which, _, column, _ in parts if which == kind]),
            np.concatenate([value for which, _, _, value in parts if which == kind]).astype(
                np.float32
            ),
        )
        for kind in (0, 1)
    ]


def train(w, h, entries, rate: float, decay: float, order: np.random.Generator) -> None:
    """One pass over the known entries of a block. A batch changes each row and column by the sum of its steps."""
    row, column, value = entries
    for chosen in np.array_split(order.permutation(len(row)), max(1, len(row) // 64)):
        i, j = row[chosen], column[chosen]
        error = value[chosen] - np.einsum("ij,ij->i", w[i], h[j])
        step_w = rate * (error[:, None] * h[j] - decay * w[i])
        step_h = rate * (error[:, None] * w[i] - decay * h[j])
        np.add.at(w, i, step_w)
        np.add.at(h, j, step_h)


def pass_on(h, mine: range, sub_epoch: int, blocks: int) -> None:
    """Sends the column block that this rank is done with to the previous rank, and receives the next one."""
    rank, size = rueda.rank(), rueda.size()
    leaving, coming = (mine[0] + sub_epoch) % blocks, (mine[-1] + sub_epoch + 1) % blocks
    sending = rueda.send_async(h[leaving], (rank - 1) % size, tag=leaving)
    arrived = np.empty_like(h[leaving])
    rueda.recv(arrived, (rank + 1) % size, tag=coming)
    sending.result()
    del h[leaving]
    h[coming] = arrived


def cut(entries, width: int, part: int):
    """The entries in one column block, with columns numbered within the block."""
    row, column, value = entries
    here = column // width == part
    return row[here], column[here] % width, value[here]


def at_least(least: int):
    """Converts an argument of the command line to a whole number of at least this."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=at_least(1), default=1200)
    parser.add_argument("--columns", type=at_least(1), default=800)
    parser.add_argument("--blocks", type=at_least(1), help="B; by default one for each rank")
    parser.add_argument("--epochs", type=at_least(0), default=20)
    options = parser.parse_args()
    rueda.init()
    rank, size = rueda.rank(), rueda.size()
    blocks = options.blocks or size
    if blocks % size or options.rows % blocks or options.columns % blocks:
        raise SystemExit(
            f"{size} ranks, {blocks} blocks, {options.rows} rows, {options.columns} columns: ranks must divide the "
            f"blocks, and blocks the rows and columns"
        )
    each = blocks // size
    mine = range(rank * each, (rank + 1) * each)  # blocks of rows
    height, width = options.rows // blocks, options.columns // blocks

    def start(what: int, block: int, length: int):
        draw = np.random.default_rng([what, block])
        return draw.normal(0, 0.3, (length, RANK)).astype(np.float32)

    entries = {
        block: ratings(range(block * height, (block + 1) * height), options.columns)
        for block in mine
    }
    w = {block: start(3, block, height) for block in mine}
    h = {block: start(4, block, width) for block in mine}
    squares = np.zeros(2)
    for epoch in range(options.epochs + 1):
        for sub_epoch in range(blocks):
            for block in mine:
                part = (block + sub_epoch) % blocks
                if epoch < options.epochs:
                    order = np.random.default_rng([5, epoch, block, part])
                    train(w[block], h[part], cut(entries[block][0], width, part), 0.05, 0.01, order)
                else:  # one more round, to compare with the unknown entries
                    row, column, value = cut(entries[block][1], width, part)
                    error = value - np.einsum("ij,ij->i", w[block][row], h[part][column])
                    squares += [float(np.square(error).sum()), len(error)]
            pass_on(h, mine, sub_epoch, blocks)

    total = rueda.allreduce(squares, "squares", rueda.Sum)
    held = sum(factors.nbytes for factors in [*w.values(), *h.values()])
    digests = [
        (what, number, hashlib.sha256(factors.tobytes()).hexdigest())
        for what, held_here in (("w", w), ("h", h))
        for number, factors in held_here.items()
    ]
    whole = sorted(each for some in rueda.allgather_object(digests) for each in some)
    if rank == 0:
        bits = hashlib.sha256(str(whole).encode()).hexdigest()[:16]
        print(f"error of what was not known {(total[0] / total[1]) ** 0.5:.4f}, noise {NOISE}")
        whole_bytes = 4 * RANK * (options.rows + options.columns)
        print(f"factors of a rank {held} of {whole_bytes} bytes, bits {bits}")
    rueda.shutdown()


if __name__ == "__main__":
    main()
