#!/usr/bin/env python3
"""Writes tables.h: constants and polynomials of the mathematics, from mpmath (pip install mpmath).

A polynomial is the Chebyshev interpolation of its function, in 60 digits, rounded to double precision at the end.
A table of pieces holds one row for each of its equal intervals; a row's polynomial is in u, -1 to 1 over the interval.
"""
import sys
from mpmath import *

mp.dps = 60


def cheb(f, a, b, n):
    """Coefficients of u^0 to u^n, u from -1 to 1 over [a, b]."""
    a, b = mpf(a), mpf(b)
    m = n + 1
    xs = [cos(pi * (2 * k + 1) / (2 * m)) for k in range(m)]
    ys = [f(a + (b - a) * (x + 1) / 2) for x in xs]
    cs = [2 * sum(ys[k] * cos(pi * j * (2 * k + 1) / (2 * m)) for k in range(m)) / m for j in range(m)]
    cs[0] /= 2
    t0, t1 = [mpf(1)], [mpf(0), mpf(1)]
    out = [mpf(0)] * m
    for j, c in enumerate(cs):
        t = t0 if j == 0 else t1
        for i, v in enumerate(t):
            out[i] += c * v
        if j >= 1:
            nxt = [mpf(0)] + [2 * v for v in t1]
            for i, v in enumerate(t0):
                nxt[i] -= v
            t0, t1 = t1, nxt
    return out


def plain(f, a, b, n):
    """Coefficients of x^0 to x^n: the interval's polynomial, expanded."""
    cs = cheb(f, a, b, n)
    a, b = mpf(a), mpf(b)
    scale, shift = 2 / (b - a), -(a + b) / (b - a)
    out = [mpf(0)] * (n + 1)
    for c in reversed(cs):
        new = [mpf(0)] * (n + 1)
        for i in range(n + 1):
            new[i] += out[i] * shift
            if i:
                new[i] += out[i - 1] * scale
        new[0] += c
        out = new
    return out


def hexed(v):
    return float(v).hex().replace("0x1.0000000000000p", "0x1p").replace("0x0.0p+0", "0")


def parts(v, n):
    out = []
    for _ in range(n):
        h = float(v)
        out.append(h)
        v = v - mpf(h)
    return out


def rows(values):
    line, lines = "   ", []
    for v in values:
        word = " " + hexed(v) + ","
        if len(line) + len(word) > 118:
            lines.append(line)
            line = "   "
        line += word
    return "\n".join(lines + [line])


def row(name, values):
    print(f"RB_MATH_TABLE double {name}[{len(values)}] = {{\n{rows(values)}\n}};")


def pieces(name, f, a, b, count, n, zeros=()):
    """With zeros: two more entries at each row's start, the zero next to the interval (or NaN), which was divided out."""
    a, b = mpf(a), mpf(b)
    out = []
    for i in range(count):
        lo, hi = a + (b - a) * i / count, a + (b - a) * (i + 1) / count
        g = f
        if zeros is not None and len(zeros):
            near = [z for z in zeros if lo - mpf(3) / 4 <= z <= hi + mpf(3) / 4]
            if near:
                z = min(near, key=lambda z: abs(z - (lo + hi) / 2))
                out += parts(z, 2)
                g = lambda x, z=z: f(x) / (x - z)
            else:
                out += [float("nan"), 0.0]
        out += cheb(g, lo, hi, n)
    print(f"/* {count} rows from {nstr(a, 5)} to {nstr(b, 5)}, degree {n}. */")
    vals = ["__builtin_nan(\"\")" if v != v else hexed(v) for v in out]
    line, lines = "   ", []
    for v in vals:
        word = " " + v + ","
        if len(line) + len(word) > 118:
            lines.append(line)
            line = "   "
        line += word
    body = "\n".join(lines + [line])
    print(f"RB_MATH_TABLE double {name}[{len(out)}] = {{\n{body}\n}};")


def constant(name, v, n=2):
    for suffix, p in zip(["", "_LOW", "_REST"], parts(v, n)):
        print(f"#define RB_MATH_{name}{suffix} {p.hex()}")


print("/* Constants and polynomials of the mathematics. Made by tables.py; do not edit. */")
print("#ifndef RB_CUDA_MATH_TABLES_H\n#define RB_CUDA_MATH_TABLES_H\n")
constant("LN2", log(2))
constant("INV_LN2", 1 / log(2))
constant("INV_LN10", 1 / log(10))
constant("LN10", log(10))
constant("HALF_PI", pi / 2, 3)
constant("PI", pi)
constant("TWO_OVER_PI", 2 / pi)
constant("SQRT_HALF", sqrt(mpf(1) / 2))
constant("SQRT_2", sqrt(mpf(2)))
constant("INV_SQRT_PI", 1 / sqrt(pi))
constant("HALF_LN_2PI", log(2 * pi) / 2)
constant("EULER", euler)
print()

# (e^r - 1 - r) / r^2
row("exp_q", plain(lambda r: sum(r ** k / factorial(k + 2) for k in range(40)), "-0.3476", "0.3476", 10))
# (atanh(s) / s - 1 - z / 3) / z^2, z = s^2
row("atanh_q", plain(lambda z: sum(z ** k / (2 * k + 5) for k in range(60)), 0, "0.02945", 9))
# (sin(r) / r - 1) / z and (cos(r) - 1 + z / 2) / z^2
row("sin_q", plain(lambda z: sum((-1) ** (k + 1) * z ** k / factorial(2 * k + 3) for k in range(30)), 0, "0.6175", 7))
row("cos_q", plain(lambda z: sum((-1) ** k * z ** k / factorial(2 * k + 4) for k in range(30)), 0, "0.6175", 7))
# (atan(t) / t - 1) / z for |t| to 1/16
row("atan_q", plain(lambda z: sum((-1) ** (k + 1) * z ** k / (2 * k + 3) for k in range(60)), 0, "0.00395", 6))
# atan(k / 8), in two parts
row("atan_of", sum((parts(atan(mpf(k) / 8), 2) for k in range(9)), []))
# 2 / pi, most significant bits first, after two words of zeros
saved = mp.dps
mp.dps = 460
words = int(floor(2 / pi * mpf(2) ** 1344))
mp.dps = saved
print("RB_MATH_TABLE unsigned long long two_over_pi[23] = {\n    0, 0,")
for i in range(21):
    print(f"    0x{words >> (1344 - 64 * (i + 1)) & (1 << 64) - 1:016x},")
print("};")

# erf(x) / x - 1 of x^2, -1 to 1 over [0, 1]
row("erf_q", cheb(lambda z: erf(sqrt(z)) / sqrt(z) - 1, 0, 1, 13))
# erfcx(x) / t, t = 4 / (4 + x)


def erfcx_over(t):
    x = 4 * (1 - t) / t
    v = exp(x * x) * erfc(x) if x < 20 else hyperu(mpf(1) / 2, mpf(1) / 2, x * x) / sqrt(pi)
    return v / t


pieces("erfcx_p", erfcx_over, 0, 1, 16, 11)
pieces("gamma_p", gamma, 1, 2, 4, 14)
pieces("lgamma_p", lambda x: loggamma(x) / ((x - 1) * (x - 2)) if x not in (1, 2) else None, "0.5", "2.5", 8, 17)
# The Stirling series' correction: lgamma(x) - ((x - 1/2) ln x - x + ln(2 pi) / 2), times x, of (10 / x)^2
row("stirling_q", [bernoulli(2 * k) / (2 * k * (2 * k - 1)) / mpf(100) ** (k - 1) for k in range(1, 11)])

j0z = [besseljzero(0, k) for k in (1, 2, 3)]
j1z = [mpf(0)] + [besseljzero(1, k) for k in (1, 2, 3)]
y0z = [besselyzero(0, k) for k in (1, 2, 3)]
y1z = [besselyzero(1, k) for k in (1, 2, 3)]
pieces("j0_p", lambda x: besselj(0, x), 0, 8, 8, 13, j0z)
pieces("j1_p", lambda x: besselj(1, x), 0, 8, 8, 13, j1z)
pieces("y0_p", lambda x: bessely(0, x), "0.5", 8, 15, 20, y0z)
pieces("y1_p", lambda x: bessely(1, x), "0.5", 8, 15, 20, y1z)
# Y0 - 2/pi ln(x) J0, of x^2; (Y1 - 2/pi (ln(x) J1 - 1/x)) / x
row("y0_q", plain(lambda z: bessely(0, sqrt(z)) - 2 / pi * log(sqrt(z)) * besselj(0, sqrt(z)), 0, "0.25", 6))
row("y1_q", plain(lambda z: (bessely(1, sqrt(z)) - 2 / pi * (log(sqrt(z)) * besselj(1, sqrt(z)) - 1 / sqrt(z))) / sqrt(z), 0, "0.25", 6))


def hankel(n, part):
    """P and Q of J = sqrt(2 / (pi x)) (P cos c - Q sin c); Q times x / 8. Of w = 64 / x^2."""

    def f(w):
        x = 8 / sqrt(w)
        c = x - (2 * n + 1) * pi / 4
        j, y = besselj(n, x), bessely(n, x)
        s = sqrt(pi * x / 2)
        return s * (j * cos(c) + y * sin(c)) if part == 0 else s * (y * cos(c) - j * sin(c)) * x / 8

    return f


for n in (0, 1):
    row(f"p{n}_q", cheb(hankel(n, 0), 0, 1, 17))
    row(f"q{n}_q", cheb(hankel(n, 1), 0, 1, 17))
# I0 and I1 / x below 8; from there sqrt(x) e^-x I, of 8 / x
pieces("i0_p", lambda x: besseli(0, x), 0, 8, 4, 17)
pieces("i1_p", lambda x: besseli(1, x) / x, 0, 8, 4, 17)
pieces("i0_far", lambda t: sqrt(8 / t) * exp(-8 / t) * besseli(0, 8 / t), mpf(10) ** -6, 1, 4, 12)
pieces("i1_far", lambda t: sqrt(8 / t) * exp(-8 / t) * besseli(1, 8 / t), mpf(10) ** -6, 1, 4, 12)
print("\n#endif /* RB_CUDA_MATH_TABLES_H */")
