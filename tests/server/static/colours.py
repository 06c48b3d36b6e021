"""Contrast of colours as browsers compute them."""

import re


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance of WCAG 2."""
    parts = [part / 255 for part in colour[:3]]
    red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(text: str) -> tuple[float, ...]:
    """Red, green, blue and opacity of a computed colour, `rgb(...)` or `color(srgb ...)`."""
    numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-?\d+)?", text)]
    if text.startswith("color("):
        numbers[:3] = [255 * number for number in numbers[:3]]
    return (*numbers, 1.0)[:4]


def over(top: tuple[float, ...], bottom: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(top[3] * one + (1 - top[3]) * other for one, other in zip(top[:3], bottom[:3], strict=True))
