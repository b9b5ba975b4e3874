"""Which numbers are better the larger they are, by the names that scripts give them."""

from __future__ import annotations

import re

__all__ = ["is_better_higher"]

_LESS = re.compile(
    r"bce|bp[bcd]|ce|cer|cost|crps|der|eer|err|errors?|fid|fpr|kl|latency|logloss|loss(es)?|lpips|mae|mape|mse|msle|nll|"
    r"nmse|nrmse|perplexity|ppl|regret|residual|rmse|rmsle|seconds|smape|ter|time|wer|xent"
)
_MORE = re.compile(
    r"acc|accuracy|ap|auc|auprc|auroc|bleu|cider|correct|dice|f1|fscore|iou|jaccard|kappa|map|mcc|meteor|miou|mrr|ndcg|"
    r"precision|psnr|r2|recall|returns?|rewards?|roc|rouge|scores?|sensitivity|specificity|ssim|throughput|tpr"
)
_NEGATIVE = re.compile(r"inv|inverse|minus|neg|negative")


def is_better_higher(name: str) -> bool | None:
    """Of ``val_loss``, ``test/ppl`` or ``wordError`` False, of ``accuracy`` True; None where the name does not tell.

    A name that has words of both kinds does not, nor one such as ``neg_mean_squared_error``.
    """
    parted = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
    words = set(re.split(r"[^a-z0-9]+", parted))
    if any(map(_NEGATIVE.fullmatch, words)):
        return False if "likelihood" in words else None
    less = any(map(_LESS.fullmatch, words)) or {"cross", "entropy"} <= words
    more = any(map(_MORE.fullmatch, words))
    return more if less != more else None
