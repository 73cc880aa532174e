// Special functions of statistics and physics, for kernel expressions; prelude.wgsl says what rules hold here too.

// --- error function: complement and inverses

// exp(t^2) erfc(t) for t >= 0: 3 ulp.
fn erfcx_positive(t: f32) -> f32 {
  let c = select(t, 1e30, t > 1e30);
  let q = (c - 2.0) / (c + 2.0);
  let high = -0.00802086946 + q * (0.00875417423 + q * (0.00120544038 + q * (-0.00152845716 + q * (-3.00057844e-4 + q * 2.59827124e-4))));
  let low = 1.27697837 + q * (-0.0927637964 + q * (-0.166030064 + q * (0.164050132 + q * (-0.0542255454 + q * high))));
  return low / (1.0 + 2.0 * c);
}
// exp(-t^2 scale) for a scale that is a power of two; the square is held in two parts.
fn exp_square(t: f32, scale: f32) -> f32 {
  let h = head(select(t, 100.0, t > 100.0));
  let l = select(t, 100.0, t > 100.0) - h;
  return exp_sum(-(h * h) * scale, -(l * (h + h + l)) * scale);
}
// 1 - erf(x): 4 ulp, also where it is tiny.
fn erfc_(x: f32) -> f32 {
  let t = abs(x);
  let far = exp_square(t, 1.0) * erfcx_positive(t);
  let r = select(1.0 - erf(x), select(far, 2.0 - far, x < 0.0), t > 0.46875);
  return select(r, x, is_nan(x));
}
// exp(x^2) erfc(x).
fn erfcx_(x: f32) -> f32 {
  let t = abs(x);
  let h = head(select(t, 12.0, t > 12.0));
  let l = select(t, 12.0, t > 12.0) - h;
  let grown = exp_sum(h * h, l * (h + h + l));
  let near = grown * (1.0 - erf(x));
  let negative = select(2.0 * grown - erfcx_positive(t), inf(), x < -9.5);
  let r = select(select(erfcx_positive(t), negative, x < 0.0), near, t < 0.46875);
  return select(select(r, 0.0, x > 3e38), x, is_nan(x));
}
// erfinv(a) / a for w = -log(1 - a^2) in [0, 104].
fn erfinv_poly(w: f32) -> f32 {
  let a = w - 2.5;
  let ah = -4.96334769e-6 + a * (-3.46270485e-6 + a * (4.66170661e-7 + a * (2.32326443e-8 + a * -8.79105677e-9)));
  let near = 1.50140941 + a * (0.24664028 + a * (-0.00417738687 + a * (-0.0012527419 + a * (2.18344445e-4 + a * ah))));
  let b = sqrt_(w) - 3.15;
  let bh = -0.00233877776 + b * (0.00126324792 + b * (-0.00033454434 + b * (-0.000153372472 + b * 0.000115704221)));
  let middle = 2.98341751 + b * (1.00406134 + b * (0.00666593062 + b * (-0.00493648928 + b * (0.00347356801 + b * bh))));
  let c = sqrt_(w) - 7.0;
  let ch = -1.67793075e-06 + c * (2.53190933e-07 + c * (-4.2194511e-08 + c * (1.53149653e-08 + c * -2.38527975e-09)));
  let far = 6.86901951 + c * (1.00859559 + c * (-0.00051291351 + c * (6.41273618e-06 + c * (6.27022473e-06 + c * ch))));
  return select(select(near, middle, w > 5.0), far, w > 16.6);
}
// The inverse of erf: 4 ulp.
fn erfinv_(a: f32) -> f32 {
  let w = -log_((1.0 - a) * (1.0 + a));
  let r = select(a * erfinv_poly(w), copy_sign(inf(), a), abs(a) == 1.0);
  return select(r, nan(), abs(a) > 1.0 || is_nan(a));
}
// The inverse of ndtr: 5 ulp.
fn ndtri_(p: f32) -> f32 {
  let q = select(p, 1.0 - p, p > 0.5);
  let a = 2.0 * q - 1.0;
  let r = 1.41421356 * a * erfinv_poly(-log_(4.0 * q * (1.0 - q)));
  let s = select(select(r, -inf(), !truth(q)), 0.0, p == 0.5);
  return select(select(s, -s, p > 0.5), nan(), p < 0.0 || p > 1.0 || is_nan(p));
}
// The normal distribution's area below x: 4 ulp.
fn ndtr_(x: f32) -> f32 {
  let t = abs(x);
  let tail = 0.5 * exp_square(t, 0.5) * erfcx_positive(t * 0.707106781);
  let r = select(0.5 + 0.5 * erf(x * 0.707106781), select(tail, 1.0 - tail, x > 0.0), t > 0.66);
  return select(r, x, is_nan(x));
}
fn log_ndtr_(x: f32) -> f32 {
  let t = abs(x) * 0.707106781;
  let low = log_(0.5 * erfcx_positive(t)) - 0.5 * x * x;
  let r = select(log1p_(-ndtr_(-x)), low, x < -1.0);
  return select(select(r, -inf(), x < -3e38), x, is_nan(x));
}

// --- gamma functions

// x = q / 2 + r / pi with |r| <= pi/4: (r, q mod 4), the angle pi x.
fn half_turns(x: f32) -> vec2<f32> {
  let n = round(x + x);
  return vec2<f32>((x - 0.5 * n) * 3.14159265, n - 4.0 * floor(n * 0.25));
}
fn sin_pi(x: f32) -> f32 { let t = half_turns(x); return sin_turned(t.x, u32(t.y)); }
fn cot_pi(x: f32) -> f32 {
  let t = half_turns(x);
  return sin_turned(t.x, u32(t.y) + 1u) / sin_turned(t.x, u32(t.y));
}
// sin(pi x) / (pi x).
fn sinc_(x: f32) -> f32 {
  let t = abs(x);
  return select(select(sin_pi(t) / (3.14159265 * t), 1.0, t < 1e-4), nan(), !is_finite(x));
}
// lgamma(1 + u) / (u (u - 1)) for u in [-0.36, 0.66].
fn lgamma_one(u: f32) -> f32 {
  let high = 0.0661999881 + u * (-0.057833042 + u * (0.0557583123 + u * (-0.0570523962 + u * (0.0436284877 + u * -0.0154152075))));
  return 0.577215672 + u * (-0.245251358 + u * (0.15543364 + u * (-0.115146898 + u * (0.0922700018 + u * (-0.0773429796 + u * high)))));
}
// lgamma(x) / ((x - 1) (x - 2)) for u = x - 2.25, x in [1.65, 3].
fn lgamma_two(u: f32) -> f32 {
  let high = 0.00303865480 + u * (-0.00113352481 + u * (4.49732499e-4 + u * (-1.99317568e-4 + u * 6.37048433e-5)));
  return 0.399589479 + u * (-0.0858808234 + u * (0.0252685472 + u * (-0.00846484769 + u * high)));
}
// log|gamma(x)| for x > -0.36.
fn lgamma_right(x: f32) -> f32 {
  let i = 1.0 / x;
  let s = i * i;
  let rest = 0.0833333358 + s * (-0.00277759507 + s * (7.84927281e-4 + s * -4.5567358e-4));
  let far = (x - 0.5) * (log_(x) - 1.0) + (0.418938533 + i * rest);
  let near = (x - 1.0) * (x - 2.0) * select(lgamma_one(x - 1.0), lgamma_two(x - 2.25), x > 1.65);
  let pole = x * (x - 1.0) * lgamma_one(x) - log_(abs(x));
  return select(select(select(near, 0.0, !truth(near)), pole, x < 0.65), select(far, x, is_inf(x)), x > 3.0);
}
// log|gamma(x)|: 4 ulp for x > 0; below, 4 ulp of the largest of its terms.
fn lgamma_(x: f32) -> f32 {
  let t = abs(x);
  let left = log_(3.14159265 / (t * abs(sin_pi(t)))) - lgamma_right(t);
  let r = select(lgamma_right(x), left, x < -0.35);
  let pole = x <= 0.0 && floor(x) == x;
  return select(select(r, inf(), pole || is_inf(x)), x, is_nan(x));
}
// The logarithmic derivative of gamma at x > 0.
fn digamma_right(x: f32) -> f32 {
  let z = select(x, x - select(1.0, 2.0, x > 2.0), x >= 1.0);
  let u = z - 0.5;
  let high = -0.062057063 + u * (0.040878538 + u * (-0.0257810745 + u * (0.0169840697 + u * (-0.0163839813 + u * 0.0111127915))));
  let low = 0.951055884 + u * (-0.423627496 + u * (0.24054262 + u * (-0.148398787 + u * (0.0949821547 + u * high))));
  let root = (z - 0.461632133) * low - 1.2030066e-8;
  let near = select(select(root, root + 1.0 / (1.0 + z), x > 2.0), root - 1.0 / x, x < 1.0);
  let i = 1.0 / x;
  let s = i * i;
  let rest = -0.0833333358 + s * (0.00833320618 + s * (-0.00395842781 + s * (0.00389230927 + s * -0.00413905038)));
  let far = (log_(x) - 0.5 * i) + s * rest;
  return select(select(near, far, x > 3.0), x, is_inf(x));
}
// 4 ulp for x > 0; below, 4 ulp of the larger of its two terms.
fn digamma_(x: f32) -> f32 {
  let left = digamma_right(1.0 - x) - 3.14159265 * cot_pi(x);
  let r = select(digamma_right(x), select(left, nan(), floor(x) == x), x < 0.0);
  return select(select(r, copy_sign(inf(), -x), !truth(x)), x, is_nan(x));
}
// The Hurwitz zeta function, the sum of (x + k)^-s over k >= 0, for x > 0 and whole s > 1.
fn zeta_right(s: f32, x: f32) -> f32 {
  var sum = 0.0;
  for (var k = 0.0; k < 7.5; k += 1.0) { sum += pow_positive(x + k, -s); }
  let a = x + 8.0;
  let i = 1.0 / a;
  let b = (s + 1.0) * (s + 2.0) * i * i;
  let tail = pow_positive(a, -s);
  let c = (s + 3.0) * (s + 4.0) * i * i;
  return sum + (tail * a / (s - 1.0) + tail * (0.5 + s * i * (0.0833333333 - b * (0.00138888889 - c * 3.30687831e-5))));
}
// The same for any x: below 0 the terms on either side of the pole are summed apart.
fn zeta_(s: f32, x: f32) -> f32 {
  let f = x - floor(x);
  var r = 0.0;
  if (x > 0.0) { r = zeta_right(s, select(x, 1e30, x > 1e30)); }
  if (x < 0.0) {
    let mirrored = zeta_right(s, (floor(x) + 1.0) - x) - zeta_right(s, 1.0 - x);
    r = zeta_right(s, f) + select(mirrored, -mirrored, floor(0.5 * s) * 2.0 != s);
  }
  return select(select(r, inf(), x <= 0.0 && floor(x) == x), x, is_nan(x));
}
// The same for any s: infinite at 1, not a number below 1 and, unless s is whole, left of 0.
fn zeta_any(s: f32, x: f32) -> f32 {
  let r = select(zeta_(s, x), nan(), x < 0.0 && floor(x) != x && floor(s) != s);
  return select(select(select(r, inf(), s == 1.0), nan(), s < 1.0), s, is_nan(s));
}

// --- Bessel functions

// I0(x) for x in [0, 8].
fn i0_near(x: f32) -> f32 {
  let s = 0.25 * x * x;
  let high = 1.93249207e-6 + s * (3.88651245e-8 + s * (6.59918675e-10 + s * (5.22018279e-12 + s * 1.42253695e-13)));
  return 1.0 + s * (1.0 + s * (0.25000003 + s * (0.0277777258 + s * (0.00173614861 + s * (6.94296104e-5 + s * high)))));
}
// exp(-x) sqrt(x) I0(x) for v = 1 / x, x >= 8.
fn i0_far(v: f32) -> f32 {
  return 0.398942292 + v * (0.0498695858 + v * (0.0278987959 + v * (0.0337851532 + v * (-0.0138504356 + v * 0.387965232))));
}
// I1(x) for x in [0, 8].
fn i1_near(x: f32) -> f32 {
  let s = 0.25 * x * x;
  let high = 1.15959929e-5 + s * (2.71833756e-7 + s * (5.30128119e-9 + s * (4.59348982e-11 + s * 1.44202478e-12)));
  return 0.5 * x * (1.0 + s * (0.50000006 + s * (0.0833332092 + s * (0.00694458559 + s * (3.47147055e-4 + s * high)))));
}
fn i1_far(v: f32) -> f32 {
  return 0.398942292 + v * (-0.149605453 + v * (-0.0465757661 + v * (-0.0461562276 + v * (0.00969714392 + v * -0.45237121))));
}
// exp(x) p / sqrt(x), where exp(x) alone may overflow: x - 4 is exact.
fn bessel_grown(x: f32, p: f32) -> f32 { return exp_(x - 4.0) * (54.5981500 * p / sqrt_(x)); }
// Modified Bessel functions of the first kind, and the same times exp(-|x|): 5 ulp.
fn i0_(x: f32) -> f32 {
  let t = abs(x);
  return select(select(i0_near(t), bessel_grown(t, i0_far(1.0 / t)), t > 8.0), t, !is_finite(x));
}
fn i0e_(x: f32) -> f32 {
  let t = abs(x);
  let r = select(i0_near(t) * exp_(-t), i0_far(1.0 / t) / sqrt_(t), t > 8.0);
  return select(r, select(0.0, x, is_nan(x)), !is_finite(x));
}
fn i1_(x: f32) -> f32 {
  let t = abs(x);
  return select(copy_sign(select(i1_near(t), bessel_grown(t, i1_far(1.0 / t)), t > 8.0), x), x, !is_finite(x));
}
fn i1e_(x: f32) -> f32 {
  let t = abs(x);
  let r = copy_sign(select(i1_near(t) * exp_(-t), i1_far(1.0 / t) / sqrt_(t), t > 8.0), x);
  return select(r, select(copy_sign(0.0, x), x, is_nan(x)), !is_finite(x));
}
