// Functions that kernel expressions call by name; a kernel gets only those it names, and those they name.
// Rules: drivers fold x != x, x - x, x * 0 and (a + b) - a as if all were finite and exact, and drop NaN in max,
// min and clamp. So NaN and inf are tested by their bits, and sums are split by masking mantissa bits, never by
// adding and subtracting a big number. A select on v > c is compiled to min or max, which drop NaN: NaN is put back last. fma may be fused or not: nothing below depends on it.
// No return inside a branch: Mesa 22 loses the stores of a kernel whose uniform branch returns from an inlined function.
// Error bounds are against exact results, in units in the last place (ulp), as tests/kernels/test_prelude.py checks.

// --- bits

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
// A var, because Tint refuses constant expressions that are not finite.
fn inf() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn nan() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
// x is not zero; NaN counts as true.
fn truth(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) != 0u; }
fn is_negative(x: f32) -> bool { return (bitcast<u32>(x) & 0x80000000u) != 0u; }
fn copy_sign(x: f32, s: f32) -> f32 { return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u)); }
// The leading 12 bits of the mantissa: products of two such numbers are exact.
fn head(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
fn wrap_i8(x: i32) -> i32 { return (x << 24u) >> 24u; }
fn f32_to_u32(x: f32) -> u32 { return select(u32(x), bitcast<u32>(i32(x)), x < 0.0); }
// To the nearest float16, ties to even, kept as f32: below 2^-14 in steps of 2^-24, from 65520 on infinite. NaN stays NaN.
fn round_f16(x: f32) -> f32 {
  let u = bitcast<u32>(x);
  let a = u & 0x7fffffffu;
  if a > 0x7f800000u { return x; }
  if a < 0x38800000u { return round(x * 16777216.0) * 5.9604644775390625e-08; }
  let r = (a + 0xfffu + ((a >> 13u) & 1u)) & 0xffffe000u;
  return copy_sign(bitcast<f32>(select(r, 0x7f800000u, r > 0x477fe000u)), x);
}
// To the nearest bfloat16, ties to even, kept as f32. NaN stays NaN.
fn round_bf16(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  let r = (b + 0x7fffu + ((b >> 16u) & 1u)) & 0xffff0000u;
  return bitcast<f32>(select(r, (b & 0xffff0000u) | 0x400000u, (b & 0x7fffffffu) > 0x7f800000u));
}
// A float's place among all floats: neighbours differ by 1, and both zeros are 0.
fn place(x: f32) -> i32 { let b = bitcast<i32>(x); return select(b, -(b & 0x7fffffff), b < 0); }
// The next float after a towards b.
fn nextafter_(a: f32, b: f32) -> f32 {
  let k = place(a);
  let n = k + select(-1, 1, place(b) > k);
  let bits = select(u32(n), 0x80000000u | u32(-n), n < 0 || (n == 0 && is_negative(a)));
  return select(select(bitcast<f32>(bits), b, place(b) == k), nan(), is_nan(a) || is_nan(b));
}
// The same among float16 numbers: 2^13 float32 numbers apart, or 2^-24 below the smallest normal one.
fn nextafter_half(a: f32, b: f32) -> f32 {
  let up = place(b) > place(a);
  let outward = up != is_negative(a);
  let t = abs(a);
  let tiny = a + select(-5.96046448e-8, 5.96046448e-8, up);
  let stepped = bitcast<f32>(bitcast<u32>(a) + select(0xffffe000u, 0x2000u, outward));
  let inner = select(stepped, copy_sign(65504.0, a), is_inf(a));
  let normal = select(inner, copy_sign(inf(), a), outward && t >= 65504.0);
  let r = select(normal, select(tiny, copy_sign(0.0, a), !truth(tiny)), t < 6.10351562e-5 || (t == 6.10351562e-5 && !outward));
  return select(select(r, b, place(b) == place(a)), nan(), is_nan(a) || is_nan(b));
}
// x = frexp_mantissa(x) 2^frexp_exponent(x) with a mantissa in [0.5, 1).
fn frexp_bits(x: f32) -> u32 { let m = bitcast<u32>(x) & 0x7fffffffu; return select(m, bitcast<u32>(f32(m)), m < 0x00800000u); }
fn frexp_mantissa(x: f32) -> f32 {
  let m = bitcast<f32>((frexp_bits(x) & 0x7fffffu) | 0x3f000000u);
  return select(copy_sign(m, x), x, !truth(x) || !is_finite(x));
}
fn frexp_exponent(x: f32) -> f32 {
  let e = f32(frexp_bits(x) >> 23u) - select(126.0, 275.0, (bitcast<u32>(x) & 0x7fffffffu) < 0x00800000u);
  return select(e, 0.0, !truth(x) || !is_finite(x));
}
fn frac_(x: f32) -> f32 { return select(x - trunc(x), nan(), !is_finite(x)); }
// 2^n as a float for n in [-126, 127].
fn power_of_two(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

// --- max and min that let NaN win

fn nan_max(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
// max(x, 0) by bits: select(x, 0.0, x < 0.0) loses NaN where it is compiled to max.
fn relu_(x: f32) -> f32 { let b = bitcast<u32>(x); return select(x, 0.0, b > 0x80000000u && b <= 0xff800000u); }
fn nan_min(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }

// --- exponentials

// 2^n exp(f) for |f| <= 0.35. The two factors of 2^n keep the scale finite at both ends.
fn exp_scaled(n: f32, f: f32) -> f32 {
  let r = 1.0 + (f + f * f * (0.5 + f * (0.166665182 + f * (0.041666206 + f * (0.00836891774 + f * 0.00139505381)))));
  let i = i32(n);
  let h = i >> 1u;
  return r * power_of_two(h) * power_of_two(i - h);
}
// 1.5 ulp.
fn exp_(v: f32) -> f32 {
  let x = select(select(v, 89.0, v > 89.0), -105.0, v < -105.0);
  let n = round(x * 1.44269502);
  return select(exp_scaled(n, (x - n * 0.693359375) - n * -2.12194442e-4), v, is_nan(v));
}
// 2^v: 1.5 ulp, exact for whole v.
fn exp2_(v: f32) -> f32 {
  let x = select(select(v, 129.0, v > 129.0), -151.0, v < -151.0);
  let n = round(x);
  return select(exp_scaled(n, (x - n) * 0.693147181), v, is_nan(v));
}
// x 2^n, in two steps so that 2^n may overflow.
fn ldexp_(x: f32, n: f32) -> f32 {
  let h = floor(0.5 * n);
  let r = select(x * exp2_(h) * exp2_(n - h), x * exp2_(n), abs(n) > 1000.0);
  return select(r, x, !truth(x) && abs(n) <= 1000.0);
}
// exp(v) / 2 for v in [0, 89.4], without overflow where exp(v) itself would.
fn half_exp(v: f32) -> f32 {
  let x = select(v, 90.0, v > 90.0);
  let n = round(x * 1.44269502);
  return select(exp_scaled(n - 1.0, (x - n * 0.693359375) - n * -2.12194442e-4), v, is_nan(v));
}
// exp(hi + lo) for |lo| far below |hi| or 1: 1.5 ulp.
fn exp_sum(hi: f32, lo: f32) -> f32 {
  let x = select(select(hi, 92.0, hi > 92.0), -108.0, hi < -108.0);
  let n = round(select(select(x + lo, 89.0, x + lo > 89.0), -105.0, x + lo < -105.0) * 1.44269502);
  return exp_scaled(n, ((x - n * 0.693359375) - n * -2.12194442e-4) + lo);
}
// exp(x) - 1: 2 ulp.
fn expm1_(v: f32) -> f32 {
  let x = select(select(v, 89.0, v > 89.0), -25.0, v < -25.0);
  let n = round(x * 1.44269502);
  let f = (x - n * 0.693359375) - n * -2.12194442e-4;
  let q = f + f * f * (0.5 + f * (0.166666716 + f * (0.0416666667 + f * (0.00833343994 + f * (0.0013930907 + f * 1.97350979e-4)))));
  let t = power_of_two(i32(n) - 1);
  let r = t * q + (t - 0.5);
  return select(select(r + r, q, n == 0.0), v, is_nan(v));
}
fn sigmoid_(x: f32) -> f32 { return 1.0 / (1.0 + exp_(-x)); }
// 2 ulp.
fn tanh_(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  let near = x + x * s * (-0.333333194 + s * (0.133326024 + s * (-0.0538538583 + s * (0.021077754 + s * -0.00628246693))));
  let far = copy_sign(1.0 - 2.0 / (exp_(t + t) + 1.0), x);
  return select(near, far, t >= 0.55);
}
fn sinh_(x: f32) -> f32 {
  let t = abs(x);
  let e = expm1_(select(t, 88.0, t > 88.0));
  let r = select(0.5 * (e + e / (e + 1.0)), half_exp(t), t > 88.0);
  return copy_sign(r, x);
}
fn cosh_(x: f32) -> f32 {
  let t = abs(x);
  let h = half_exp(t);
  return select(h + 0.25 / h, h, t > 80.0);
}

// --- logarithms

// log(1 + m) for m in [-1/3, 1/3].
fn log1p_poly(m: f32) -> f32 {
  let s = m * m;
  let even = -0.249996200 + s * (-0.166846126 + s * (-0.121483460 + s * -0.130310059));
  let odd = 0.200120345 + s * (0.139814854 + s * 0.140869141);
  return m + s * (-0.5 + m * (0.333331972 + m * (even + m * odd)));
}
// 1 ulp, denormals included; 0 gives -inf, negative numbers NaN.
fn log_(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let tiny = bits < 0x00800000u;
  let b = select(bits, bitcast<u32>(f32(bits)), tiny);
  let e = (b - 0x3f2aaaabu) & 0xff800000u;
  let k = f32(bitcast<i32>(e)) * 1.1920929e-7 - select(0.0, 149.0, tiny);
  let r = log1p_poly(bitcast<f32>(b - e) - 1.0) + k * 0.693147182;
  let special = select(select(nan(), x, is_nan(x) || bits == 0x7f800000u), -inf(), (bits & 0x7fffffffu) == 0u);
  return select(r, special, bits - 1u >= 0x7f7fffffu);
}
// x = 2^k m with m near 1: (k, log m). For x > 0 finite.
fn log_parts(x: f32) -> vec2<f32> {
  let bits = bitcast<u32>(x);
  let tiny = bits < 0x00800000u;
  let b = select(bits, bitcast<u32>(f32(bits)), tiny);
  let e = (b - 0x3f2aaaabu) & 0xff800000u;
  return vec2<f32>(f32(bitcast<i32>(e)) * 1.1920929e-7 - select(0.0, 149.0, tiny), log1p_poly(bitcast<f32>(b - e) - 1.0));
}
// What a logarithm gives where x is not positive and finite.
fn log_special(x: f32, r: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let special = select(select(nan(), x, is_nan(x) || bits == 0x7f800000u), -inf(), (bits & 0x7fffffffu) == 0u);
  return select(r, special, bits - 1u >= 0x7f7fffffu);
}
// Exact for powers of two.
fn log2_(x: f32) -> f32 {
  let p = log_parts(x);
  return log_special(x, p.x + p.y * 1.44269504);
}
fn log10_(x: f32) -> f32 {
  let p = log_parts(x);
  return log_special(x, p.x * 0.301025391 + (p.x * 4.605039e-6 + p.y * 0.434294482));
}
// log(exp(a) + exp(b)) and log2(2^a + 2^b).
fn logaddexp_(a: f32, b: f32) -> f32 {
  let m = nan_max(a, b);
  return select(m + log1p_(exp_(-abs(a - b))), m, !is_finite(m));
}
fn logaddexp2_(a: f32, b: f32) -> f32 {
  let m = nan_max(a, b);
  return select(m + log1p_(exp2_(-abs(a - b))) * 1.44269504, m, !is_finite(m));
}
// x log(y), 0 where x is 0 unless y is NaN.
fn xlogy_(x: f32, y: f32) -> f32 { return select(select(x * log_(y), 0.0, !truth(x)), y, is_nan(y)); }
fn xlog1py_(x: f32, y: f32) -> f32 { return select(select(x * log1p_(y), 0.0, !truth(x)), y, is_nan(y)); }
// -x log(x).
fn entr_(x: f32) -> f32 {
  let r = select(-x * log_(x), select(0.0, -inf(), x < 0.0), x <= 0.0);
  return select(r, x, is_nan(x));
}
// log(x / (1 - x)).
fn logit_(x: f32) -> f32 {
  let y = 1.0 - x;
  return select(log_(div_(x, y)), log1p_((2.0 * x - 1.0) / y), x > 0.3 && x < 0.65);
}
// log(1 + x): 2 ulp. Scales x by the exponent of 1 + x, so that 1 + x itself is never subtracted from.
fn log1p_(x: f32) -> f32 {
  let e = (bitcast<u32>(1.0 + x) - 0x3f2aaaabu) & 0xff800000u;
  let m = bitcast<f32>(bitcast<u32>(x) - e);
  let quarter = bitcast<f32>(0x40800000u - e);
  let r = log1p_poly(select(m + (0.25 * quarter - 1.0), x, e == 0u)) + f32(bitcast<i32>(e)) * 1.1920929e-7 * 0.693147182;
  let special = select(select(nan(), x, is_nan(x) || x > 0.0), -inf(), x == -1.0);
  return select(special, r, x > -1.0 && is_finite(x));
}
// x tanh(log(1 + exp(x))): with e = exp(x), tanh is e (e + 2) / (e (e + 2) + 2).
fn mish_(x: f32) -> f32 {
  let e = exp_(select(x, 20.0, x > 20.0));
  let n = e * (e + 2.0);
  return x * select(n / (n + 2.0), 1.0, x > 20.0);
}
// log(1 + exp(beta x)) / beta, and x itself where beta x > threshold.
fn softplus_(x: f32, beta: f32, threshold: f32) -> f32 { return select(log1p_(exp_(x * beta)) / beta, x, x * beta > threshold); }
fn asinh_(x: f32) -> f32 {
  let t = abs(x);
  let s = t * t;
  let r = select(log1p_(t + s / (1.0 + sqrt(s + 1.0))), log_(t) + 0.693147182, t > 1e9);
  return copy_sign(r, x);
}
fn acosh_(x: f32) -> f32 {
  let t = x - 1.0;
  let r = select(log1p_(t + sqrt_(t * (t + 2.0))), log_(x) + 0.693147182, x > 1e9);
  return select(r, nan(), x < 1.0);
}
fn atanh_(x: f32) -> f32 {
  let t = abs(x);
  return copy_sign(0.5 * log1p_(2.0 * div_(t, 1.0 - t)), x);
}

// --- powers

// sqrt that is right at 0, inf, NaN and negative numbers on every driver.
fn sqrt_(x: f32) -> f32 {
  let r = select(sqrt(abs(x)), x, !truth(x) || is_inf(x) || is_nan(x));
  return select(r, nan(), x < 0.0);
}
fn rsqrt_(x: f32) -> f32 { return 1.0 / sqrt_(x); }
// sqrt(a^2 + b^2) without overflow; infinite where either is.
fn hypot_(a: f32, b: f32) -> f32 {
  let e = clamp(max(bitcast<u32>(a) & 0x7f800000u, bitcast<u32>(b) & 0x7f800000u), 0x00800000u, 0x7e800000u);
  let s = bitcast<f32>(0x7f000000u - e);
  let r = sqrt_((a * s) * (a * s) + (b * s) * (b * s)) * bitcast<f32>(e);
  return select(select(r, nan(), is_nan(a) || is_nan(b)), inf(), is_inf(a) || is_inf(b));
}
// x^y for x > 0 finite: 2 ulp, the logarithm held in two parts.
fn pow_positive(x: f32, y: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let tiny = bits < 0x00800000u;
  let b = select(bits, bitcast<u32>(f32(bits)), tiny);
  let e = (b - 0x3f3504f3u) & 0xff800000u;
  let k = f32(bitcast<i32>(e)) * 1.1920929e-7 - select(0.0, 149.0, tiny);
  let m = bitcast<f32>(b - e);
  let r = m - 1.0;
  let dh = head(m + 1.0);
  let dl = (1.0 - dh) + m;
  let sh = head(r / (m + 1.0));
  let sl = ((r - sh * dh) - sh * dl) / (m + 1.0);
  let q = (sh + sl) * (sh + sl);
  let lo = 2.0 * sl + (sh + sl) * q * (0.666666627 + q * (0.400003403 + q * (0.285369188 + q * 0.235899925))) + k * -2.12194442e-4;
  let top = k * 0.693359375;
  let h = head(top + 2.0 * sh);
  let l = ((top - h) + 2.0 * sh) + lo;
  let lim = select(select(y, 1e30, y > 1e30), -1e30, y < -1e30);
  let yh = head(lim);
  let hi = yh * h;
  let rest = (lim - yh) * h + lim * l;
  return exp_sum(hi, select(rest, 0.0, abs(hi) > 200.0));
}
fn pow_(x: f32, y: f32) -> f32 {
  let t = abs(x);
  let whole = floor(y) == y;
  let odd = whole && abs(y) < 16777216.0 && floor(0.5 * y) * 2.0 != y;
  var r = pow_positive(t, y);
  if (!truth(x) || is_inf(x)) { r = select(0.0, inf(), truth(x) == (y > 0.0)); }
  if (is_inf(y)) { r = select(select(0.0, inf(), (t > 1.0) == (y > 0.0)), 1.0, t == 1.0); }
  if (is_nan(x) || is_nan(y) || (x < 0.0 && !whole && is_finite(x))) { r = nan(); }
  if (odd && is_negative(x)) { r = -r; }
  return select(r, 1.0, !truth(y) || x == 1.0);
}

// --- error function

// 3 ulp. The driver's exp does here: its error (some ulp of a number below 0.19) is small beside 1.
fn erf(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  let a = 3.83197126e-4 + t * -1.72853470e-5;
  let b = 2.42546219e-2 + t * -3.88396438e-3;
  let c = -0.128717512 + t * (-0.634846687 + t * (-0.106777877 + t * (b + s * a)));
  let far = copy_sign(1.0 - exp(t * c - t), x);
  let near = x + x * (0.128379166 + s * (-0.376125336 + s * (0.112819925 + s * (-2.67681349e-2 + s * (4.99119423e-3 + s * -5.96761703e-4)))));
  return select(near, far, t > 0.927734375);
}
fn gelu_(x: f32) -> f32 { return 0.5 * x * (1.0 + erf(x * 0.707106781)); }
// The driver's exp2: a fifth faster than exp_ on software Vulkan, and good to 5e-7 relative above -2, 1e-5 at -12.
fn gelu_tanh(x: f32) -> f32 { return x / (1.0 + exp2(x * (-2.302208198 - 0.1029432397 * x * x))); }

// --- trigonometry

// x = q pi/2 + r with |r| <= pi/4: (r, q mod 4). Three-part pi/2 below 8192, the bits of 2/pi above.
fn quadrant(x: f32) -> vec2<f32> {
  let n = round(x * 0.636619772);
  var out = vec2<f32>(((x - n * 1.5703125) - n * 4.83751297e-4) - n * 7.54978995e-8, n - 4.0 * floor(n * 0.25));
  if (abs(x) > 8192.0) { out = quadrant_large(x); }
  return out;
}
// Word i of the bits of 2/pi, after one word of zeros. Selects, because drivers run a private array's code even where
// its branch is not taken.
fn two_over_pi(i: u32) -> u32 {
  let low = select(select(0xfc2757d1u, 0x4e441529u, i == 2u), select(0xa2f9836eu, 0u, i == 0u), i < 2u);
  let high = select(select(0xfe5163abu, 0x3c439041u, i == 6u), select(0xdb629599u, 0xf534ddc0u, i == 4u), i < 6u);
  return select(high, low, i < 4u);
}
// 32 bits of 2/pi from bit `shift` of word i on.
fn two_over_pi_bits(i: u32, shift: u32) -> u32 {
  return (two_over_pi(i) << shift) | select(two_over_pi(i + 1u) >> (32u - shift), 0u, shift == 0u);
}
// Payne and Hanek: 2/pi times the integer mantissa, keeping the 64 bits around the binary point.
fn quadrant_large(x: f32) -> vec2<f32> {
  let bits = bitcast<u32>(x);
  let e = ((bits >> 23u) & 0xffu) - 120u;
  let m = (bits & 0x7fffffu) | 0x800000u;
  let w = e >> 5u;
  let shift = e & 31u;
  let middle = two_over_pi_bits(w + 1u, shift);
  let mid = middle * m;
  let mid_sum = mid + mul_high(two_over_pi_bits(w + 2u, shift), m);
  let top = two_over_pi_bits(w, shift) * m + mul_high(middle, m) + select(0u, 1u, mid_sum < mid);
  let q = (top + 0x20000000u) >> 30u;
  let f = top - (q << 30u);
  let negative = bitcast<i32>(f) < 0;
  let low_abs = select(mid_sum, 0u - mid_sum, negative);
  let top_abs = select(f, ~f + select(0u, 1u, mid_sum == 0u), negative);
  let turn = (f32(top_abs) + f32(low_abs) * 2.3283064e-10) * 1.46291808e-9;
  let r = select(turn, -turn, negative != is_negative(x));
  let whole = select(q & 3u, (4u - q) & 3u, is_negative(x));
  return vec2<f32>(select(r, nan(), !is_finite(x)), f32(whole));
}
fn sin_poly(r: f32) -> f32 { let s = r * r; return r + r * s * (-0.166666546 + s * (0.00833216087 + s * -1.95152959e-4)); }
fn cos_poly(r: f32) -> f32 { let s = r * r; return 1.0 + s * (-0.5 + s * (0.0416666456 + s * (-0.00138873163 + s * 2.44331571e-5))); }
fn sin_turned(r: f32, q: u32) -> f32 {
  let v = select(sin_poly(r), cos_poly(r), (q & 1u) == 1u);
  return select(v, -v, (q & 2u) == 2u);
}
fn sin_(x: f32) -> f32 { let t = quadrant(x); return sin_turned(t.x, u32(t.y)); }
fn cos_(x: f32) -> f32 { let t = quadrant(x); return sin_turned(t.x, u32(t.y) + 1u); }
fn tan_(x: f32) -> f32 {
  let t = quadrant(x);
  let q = u32(t.y);
  return sin_turned(t.x, q) / sin_turned(t.x, q + 1u);
}
// atan of t in [0, 1].
fn atan_poly(t: f32) -> f32 {
  let s = t * t;
  let a = -0.0841944590 + s * (0.0582343191 + s * (-0.0314554684 + s * (0.0110643152 + s * -0.0018271847)));
  return t + t * s * (-0.333333015 + s * (0.199986383 + s * (-0.142652452 + s * (0.109575719 + s * a))));
}
fn atan_(x: f32) -> f32 {
  let t = abs(x);
  let r = atan_poly(select(t, 1.0 / t, t > 1.0));
  return copy_sign(select(r, 1.57079633 - r, t > 1.0), x);
}
fn atan2_(y: f32, x: f32) -> f32 {
  let a = abs(y);
  let b = abs(x);
  let swap = a > b;
  let q = select(div_(min(a, b), max(a, b)), select(0.0, 1.0, is_inf(a)), a == b && !(truth(a) && is_finite(a)));
  let p = atan_poly(select(q, 1.0, is_inf(a) && is_inf(b)));
  let r = select(p, 1.57079633 - p, swap);
  let s = copy_sign(select(r, 3.14159265 - r, is_negative(x)), y);
  return select(s, nan(), is_nan(x) || is_nan(y));
}
// asin of t in [0, 0.5], beyond t itself: t^3 times this.
fn asin_poly(s: f32) -> f32 { return 0.166667536 + s * (0.0749524161 + s * (0.045477096 + s * (0.0241476111 + s * 0.0422185473))); }
fn asin_(x: f32) -> f32 {
  let t = abs(x);
  let z = select(t * t, 0.5 * (1.0 - t), t > 0.5);
  let v = select(t, sqrt(z), t > 0.5);
  let p = v + v * z * asin_poly(z);
  return select(copy_sign(select(p, 1.57079633 - (p + p), t > 0.5), x), nan(), t > 1.0 || is_nan(x));
}
fn acos_(x: f32) -> f32 {
  let t = abs(x);
  let z = select(t * t, 0.5 * (1.0 - t), t > 0.5);
  let v = select(t, sqrt(z), t > 0.5);
  let p = v + v * z * asin_poly(z);
  let far = select(p + p, 3.14159265 - (p + p), x < 0.0);
  let near = 1.57079633 - copy_sign(p, x);
  return select(select(near, far, t > 0.5), nan(), t > 1.0 || is_nan(x));
}

// --- division and remainder

// a / b also for |b| above 2^126, whose reciprocal is denormal: GPUs divide by it, flushed to 0, and would give 0 or NaN.
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.25, (bitcast<u32>(b) & 0x7fffffffu) > 0x7e800000u);
  return (a * s) / (b * s);
}

// a / b, rounded to the nearest float as IEEE's division does, toward zero; q is about a / b, for a device's division may be
// some ulp off. m is the whole number nearest to |q|; m |b| - |a| is summed without rounding, from products of 12 bits. Where
// it is above half the step between floats below m, the quotient rounds to less than m. From 2^21 on q is no longer within half of the quotient.
fn trunc_quotient(a: f32, b: f32, q: f32) -> f32 {
  let m = round(abs(q));
  let d = abs(b);
  let s = select(select(1.0, 1152921504606846976.0, abs(a) < 8.6736174e-19), 2.3283064e-10, d > 1.2676506e30);  // out of reach of overflow and denormals
  let mh = head(m);
  let dh = head(d * s);
  let dl = d * s - dh;
  let rest = ((mh * dh - abs(a) * s) + mh * dl + (m - mh) * dh) + (m - mh) * dl;
  let step = m - bitcast<f32>(bitcast<u32>(m) - 1u);
  let n = select(m, m - 1.0, rest > 0.5 * step * (d * s));
  return select(copy_sign(n, q), trunc(q), bitcast<u32>(m) - 1u >= 0x49ffffffu);  // 0, 2^21 and more, NaN
}
fn trunc_div(a: f32, b: f32) -> f32 { return trunc_quotient(a, b, div_(a, b)); }
// The exact remainder with the sign of a; NaN for b = 0 or an infinite a. Takes off up to 12 bits of the quotient a step.
fn fmod_(a: f32, b: f32) -> f32 {
  let d = abs(b);
  let defined = d > 0.0 && is_finite(a) && !is_nan(b);
  let known = !defined || is_inf(b);
  var r = abs(a);
  var below = false;  // a rounded-up quotient took off too much: r is minus the remainder
  let dh = head(d);
  let dl = d - dh;
  // At least 1 comes off a turn, though a rounded ratio may be below 1: a loop that a driver's division keeps going hangs a GPU.
  for (var turn = 0u; turn < 64u; turn++) {
    if (known || !(r >= d)) { break; }
    let scale = select(1.0, 1.26765060e30, is_inf(div_(r, d)));
    let ratio = div_(r, d * scale);
    let q = select(select(head(ratio), floor(ratio), ratio < 4096.0 && scale == 1.0), 1.0, ratio < 1.0);
    r = (r - q * (dh * scale)) - q * (dl * scale);
    if (r < 0.0) {
      r = -r;
      below = !below;
    }
  }
  let m = copy_sign(select(r, d - r, below && truth(r)), a);
  return select(select(m, a, is_inf(b)), nan(), !defined);
}
// Python's %: the sign of b.
fn remainder_(a: f32, b: f32) -> f32 {
  let m = fmod_(a, b);
  return select(m, m + b, truth(m) && ((m < 0.0) != (b < 0.0)));
}
// Python's //.
fn floor_div(a: f32, b: f32) -> f32 {
  let m = fmod_(a, b);
  let q = div_(a - m, b) - select(0.0, 1.0, truth(m) && ((m < 0.0) != (b < 0.0)));
  let f = floor(q);
  let r = select(select(f, f + 1.0, q - f > 0.5), copy_sign(0.0, div_(a, b)), !truth(q));
  return select(r, a / b, !truth(b));
}
fn idiv_floor(a: i32, b: i32) -> i32 {
  let q = a / b;
  return select(q, q - 1, (a - q * b != 0) && ((a < 0) != (b < 0)));  // % of negative numbers differs between drivers
}
fn imod_floor(a: i32, b: i32) -> i32 {
  let m = a - (a / b) * b;
  return select(m, m + b, m != 0 && ((m < 0) != (b < 0)));
}
// a^n by squaring; wraps as integer products do.
fn upow(a: u32, n: u32) -> u32 {
  var r = 1u;
  var square = a;
  for (var left = n; left != 0u; left = left >> 1u) {
    if ((left & 1u) == 1u) { r *= square; }
    square *= square;
  }
  return r;
}
// As upow; a negative power is 0, but for the bases 1 and -1.
fn ipow(a: i32, n: i32) -> i32 {
  let inverse = select(0, select(a, 1, (n & 1) == 0), a == 1 || a == -1);
  return select(bitcast<i32>(upow(bitcast<u32>(a), u32(max(n, 0)))), inverse, n < 0);
}

// Shifts by 32 or more, or by negative numbers, push every bit out.
fn shift_left(a: i32, n: i32) -> i32 { return select(a << (u32(n) & 31u), 0, n < 0 || n > 31); }
fn shift_right(a: i32, n: i32) -> i32 { return a >> select(u32(n), 31u, n < 0 || n > 31); }
fn ushift_left(a: u32, n: u32) -> u32 { return select(a << (n & 31u), 0u, n > 31u); }
fn ushift_right(a: u32, n: u32) -> u32 { return select(a >> (n & 31u), 0u, n > 31u); }
// Greatest common divisor; gcd(a, 0) is a.
fn ugcd(a: u32, b: u32) -> u32 {
  var x = a;
  var y = b;
  loop {
    if (y == 0u) { break; }
    let r = x % y;
    x = y;
    y = r;
  }
  return x;
}
fn igcd(a: i32, b: i32) -> i32 { return bitcast<i32>(ugcd(bitcast<u32>(abs(a)), bitcast<u32>(abs(b)))); }
// Least common multiple; 0 where both are 0.
fn ulcm(a: u32, b: u32) -> u32 { return (a / max(ugcd(a, b), 1u)) * b; }
fn ilcm(a: i32, b: i32) -> i32 { return abs((a / max(igcd(a, b), 1)) * b); }

// --- random numbers

// The high word of a 64-bit product.
fn mul_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let low = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (low >> 16u);
}
// A word scaled to [0, span), without division; a span of 0 stands for 2^32. Source: arXiv:1805.10941.
fn scaled_word(word: u32, span: u32) -> u32 { return select(mul_high(word, span), word, span == 0u); }
// Philox4x32-10 with counter (block, 0, offset.lo, offset.hi) and key seed. Source: Salmon et al., SC 2011.
fn philox(block: u32, seed: vec2<u32>, offset: vec2<u32>) -> vec4<u32> {
  var c = vec4<u32>(block, 0u, offset.x, offset.y);
  var k = seed;
  for (var i = 0u; i < 10u; i++) {
    let hi0 = mul_high(0xd2511f53u, c.x);
    let hi1 = mul_high(0xcd9e8d57u, c.z);
    c = vec4<u32>(hi1 ^ c.y ^ k.x, 0xcd9e8d57u * c.z, hi0 ^ c.w ^ k.y, 0xd2511f53u * c.x);
    k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return c;
}
// In [0, 1), 24 bits.
fn uniform_(bits: u32) -> f32 { return f32(bits >> 8u) * 5.96046448e-8; }
// Two independent normal numbers (Box and Muller) from two words; the radius takes (0, 1], so it is finite.
fn normal_pair(a: u32, b: u32) -> vec2<f32> {
  let radius = sqrt_(-2.0 * log_(f32((a >> 8u) + 1u) * 5.96046448e-8));
  let q = ((b >> 8u) + 0x200000u) >> 22u;
  let r = f32(bitcast<i32>((b >> 8u) - (q << 22u))) * 3.74507028e-7;
  return radius * vec2<f32>(sin_turned(r, q + 1u), sin_turned(r, q));
}
// Normal number `lane` of the four that a Philox block gives.
fn normal_(bits: vec4<u32>, lane: u32) -> f32 {
  let pair = normal_pair(select(bits.x, bits.z, lane > 1u), select(bits.y, bits.w, lane > 1u));
  return select(pair.x, pair.y, (lane & 1u) == 1u);
}
