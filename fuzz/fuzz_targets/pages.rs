//! Page tables of a card's kernel driver: an error, or tables that can be asked and written again,
//! never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_card::pages::{FilePages, PageTableSource as _};
use ringbell_gtlb::PAGE_BYTES;
use ringbell_nic_abi::GpuVa;

fuzz_target!(|bytes: &[u8]| {
    let Ok(pages) = FilePages::parse(bytes) else {
        return;
    };
    let tables = pages.tables();
    let count: usize = tables.iter().map(|t| t.pages.len()).sum();
    assert_eq!((count, count == 0), (pages.len(), pages.is_empty()));
    let again = FilePages::parse(&FilePages::encode(&tables)).expect("they were parsed");
    assert_eq!(again.tables(), tables);
    for t in &tables {
        let (last, len) = (t.pages.len() as u64 - 1, t.pages.len() as u64 * PAGE_BYTES);
        let whole = pages.pages(t.base, len).expect("all of it is there");
        assert_eq!(&whole, t);
        // From the middle of the first page to the middle of the last.
        let inner = GpuVa(t.base.0 + PAGE_BYTES / 2);
        let most = pages.pages(inner, last * PAGE_BYTES).expect("a part of it");
        assert_eq!(most.base, t.base);
        // Behind the last page there is another table, or nothing.
        let beyond = pages.pages(t.base, len + 1);
        assert!(beyond.is_err(), "tables that touch are one");
        let _ = pages.pages(t.base, u64::MAX);
    }
});
