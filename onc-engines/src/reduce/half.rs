//! binary16 and bfloat16 as bits, without branches, so that the conversions become vector code.
//!
//! The crate `half` converts one value with branches, or a slice with its own look at the CPU; a
//! fused pass needs a conversion inside its loop. The tests hold these to `half` over every value.

/// Exact.
#[inline(always)]
pub(super) fn f32_of_bf16(h: u16) -> f32 {
    let bits = u32::from(h) << 16;
    // A signalling NaN becomes quiet, as arithmetic would make it.
    let quiet = if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x40_0000
    } else {
        0
    };
    f32::from_bits(bits | quiet)
}

/// To nearest even; a NaN stays one, made quiet, with the upper bits of its payload.
#[inline(always)]
pub(super) fn bf16_of_f32(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        nan
    } else {
        rounded
    }) as u16
}

/// Exact.
#[inline(always)]
pub(super) fn f32_of_f16(h: u16) -> f32 {
    let h = u32::from(h);
    let magnitude = (h & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    // The bias grows from 15 to 127.
    let normal = magnitude + (112 << 23);
    // Infinity and NaN: the largest exponent stays the largest; NaNs become quiet.
    let quiet = if magnitude > 0x0f80_0000 {
        0x40_0000
    } else {
        0
    };
    let special = (normal + (112 << 23)) | quiet;
    // Subnormals: 1.m × 2⁻¹⁴ − 1.0 × 2⁻¹⁴ lets the subtraction find the leading digit.
    let small = f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23);
    let bits = if exponent == 0x0f80_0000 {
        special
    } else if exponent == 0 {
        small.to_bits()
    } else {
        normal
    };
    f32::from_bits(bits | (h & 0x8000) << 16)
}

/// To nearest even; too large becomes infinite; a NaN stays one, made quiet, with the upper bits of
/// its payload, as the CPU's own conversion does.
#[inline(always)]
pub(super) fn f16_of_f32(v: f32) -> u16 {
    let bits = v.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Below 2⁻¹⁴: adding 0.5 puts the last digit of binary16 at the last digit of the sum, so that
    // the addition rounds.
    let magic = 126u32 << 23;
    let small = (f32::from_bits(magnitude) + f32::from_bits(magic))
        .to_bits()
        .wrapping_sub(magic);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff)
        .wrapping_add(odd)
        >> 13;
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let h = if magnitude > 0x7f80_0000 {
        nan
    } else if magnitude >= 143 << 23 {
        0x7c00
    } else if magnitude < 113 << 23 {
        small
    } else {
        normal
    };
    (h | bits >> 16 & 0x8000) as u16
}
