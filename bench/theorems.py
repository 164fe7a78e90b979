"""Formulas of Leviathan et al. (arXiv 2211.17192), as in common/spec/analysis.h: alpha is the mean acceptance of a token, k the number of
drafted tokens in a round."""


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of a round (equation 1), for alpha < 1."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def speed(alpha: float, c: float, k: int) -> float:
    """Speed relative to plain decoding, if a draft step takes c target steps (Theorem 3.8)."""
    return expected_tokens(alpha, k) / (k * c + 1)


def operations(alpha: float, c_hat: float, k: int) -> float:
    """Operations a token relative to plain decoding, if the draft does c_hat times as many for a token (Theorem 3.11)."""
    return (k * c_hat + k + 1) / expected_tokens(alpha, k)
