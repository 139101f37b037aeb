//! Fat binaries, plain, packed and damaged.

use ringbell_fatbin::{of_ptx, Fatbin, FatbinError, Kind};

const TEXT: &str = ".version 7.0\n.target sm_80\n.address_size 64\n// a text that repeats, that repeats, that repeats\n";

/// A fat binary of one entry with these bytes.
fn of(kind: u16, arch: u32, flags: u64, image: &[u8], unpacked: usize) -> Vec<u8> {
    let mut bytes = of_ptx(&[(arch, "")]);
    bytes.truncate(16 + 64);
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    let padded = image.len().next_multiple_of(8);
    bytes[24..32].copy_from_slice(&(padded as u64).to_le_bytes());
    bytes[32..36].copy_from_slice(&(image.len() as u32).to_le_bytes());
    bytes[56..64].copy_from_slice(&flags.to_le_bytes());
    bytes[72..80].copy_from_slice(&(unpacked as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&(64 + padded as u64).to_le_bytes());
    bytes.extend_from_slice(image);
    bytes.resize(16 + 64 + padded, 0);
    bytes
}

fn lz4() -> Vec<u8> {
    let packed = lz4_flex::block::compress(TEXT.as_bytes());
    of(1, 80, 0x2000, &packed, TEXT.len())
}

fn zstd() -> Vec<u8> {
    use ruzstd::encoding::{compress_to_vec, CompressionLevel};
    let packed = compress_to_vec(TEXT.as_bytes(), CompressionLevel::Fastest);
    of(1, 80, 0x8000, &packed, TEXT.len())
}

#[test]
fn texts_come_back_and_the_newest_that_fits_is_taken() {
    let bytes = of_ptx(&[
        (70, "seventy"),
        (90, TEXT),
        (80, "eighty"),
        (100, "hundred"),
    ]);
    let all = Fatbin::read(&bytes).unwrap();
    assert_eq!(all.entries.len(), 4);
    assert_eq!(Fatbin::len_of(&bytes).unwrap(), bytes.len() as u64);
    for (gpu, text) in [
        (70, "seventy"),
        (86, "eighty"),
        (90, TEXT),
        (121, "hundred"),
    ] {
        assert_eq!(all.ptx(gpu).unwrap(), text);
    }
    let too_new = FatbinError::TooNew { least: 70, gpu: 60 };
    assert_eq!(all.ptx(60), Err(too_new));
}

#[test]
fn packed_texts_are_unpacked() {
    for bytes in [lz4(), zstd()] {
        let all = Fatbin::read(&bytes).unwrap();
        assert_eq!(all.entries[0].kind, Kind::Ptx);
        assert_eq!(all.ptx(90).unwrap(), TEXT);
    }
}

#[test]
fn machine_code_alone_is_refused_by_its_architecture() {
    let bytes = of(2, 90, 1, b"\x7fELF", 0);
    let why = Fatbin::read(&bytes).unwrap().ptx(90).unwrap_err();
    let text = why.to_string();
    assert!(
        text.contains("has only SASS for sm_90: build with PTX"),
        "{text}"
    );
}

#[test]
fn damaged_ones_are_refused_and_never_panic() {
    for whole in [lz4(), zstd(), of_ptx(&[(80, TEXT), (90, TEXT)])] {
        for cut in 0..whole.len() {
            assert!(Fatbin::read(&whole[..cut]).is_err(), "{cut}");
        }
        let mut x = 1u32;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (x >> 8) as usize % bytes.len();
                bytes[at] ^= (x >> 3) as u8;
            }
            if let Ok(all) = Fatbin::read(&bytes) {
                let _ = all.entries.iter().try_for_each(|e| e.unpack().map(drop));
            }
        }
    }
    // More, or less, than it says; too much.
    for (bytes, says) in [
        (lz4(), 3_usize),
        (zstd(), 3),
        (zstd(), 3000),
        (zstd(), 1 << 40),
    ] {
        let mut bytes = bytes;
        bytes[72..80].copy_from_slice(&(says as u64).to_le_bytes());
        assert!(Fatbin::read(&bytes).unwrap().ptx(90).is_err());
    }
}
