//! The variables in a kernel's shared or local memory, with gaps between them where accesses are
//! checked.

/// Bytes between two variables of checked code: an index beyond one must not meet the next.
const GAP: u32 = 64;

/// Where a kernel's variables lie in one of its memories.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    /// Offset, bytes, name.
    variables: Vec<(u32, u32, String)>,
}

impl Layout {
    /// The offset of a variable in memory whose first free byte is `top`, and the first free byte
    /// behind it.
    pub(crate) fn place(
        &mut self,
        top: u32,
        (bytes, align): (u32, u32),
        name: &str,
        checked: bool,
    ) -> Option<(u32, u32)> {
        let align = align.max(if checked { 16 } else { 1 });
        let at = top.checked_next_multiple_of(align)?;
        // A whole word belongs to a part of one: 16-bit atomics are made of those of 32.
        let bytes = if checked {
            bytes.checked_next_multiple_of(4)?
        } else {
            bytes
        };
        let end = at.checked_add(bytes)?;
        if !checked {
            return Some((at, end));
        }
        // A function that is called twice has one place of its own.
        if !self
            .variables
            .iter()
            .any(|(a, b, _)| (*a, *b) == (at, bytes))
        {
            self.variables.push((at, bytes, name.to_owned()));
        }
        Some((at, end.checked_add(GAP)?))
    }

    /// A byte for each 8 bytes of the memory: how many of them belong to a variable. `dynamic` is
    /// memory without a name behind the variables, as first byte and end.
    pub(crate) fn map(&self, bytes: u64, dynamic: (u64, u64)) -> Vec<u8> {
        let mut map = vec![0u8; bytes.div_ceil(8) as usize + 4];
        let mut mark = |from: u64, to: u64| {
            for at in (from..to).step_by(8) {
                let byte = &mut map[at as usize / 8];
                *byte = (*byte).max((to - at).min(8) as u8);
            }
        };
        for (at, bytes, _) in &self.variables {
            mark(u64::from(*at), u64::from(*at) + u64::from(*bytes));
        }
        mark(dynamic.0, dynamic.1);
        map
    }

    /// What an offset that belongs to no variable lies behind.
    pub(crate) fn nearest(&self, offset: u64, dynamic: (u64, u64)) -> Option<String> {
        if offset > u64::MAX / 2 {
            let distance = grouped(offset.wrapping_neg());
            let (_, _, first) = self.variables.iter().min_by_key(|v| v.0)?;
            return Some(format!("{distance} bytes before variable `{first}`"));
        }
        let named = self.variables.iter().map(|(at, bytes, name)| {
            let end = u64::from(*at) + u64::from(*bytes);
            let bytes = grouped(u64::from(*bytes));
            (
                u64::from(*at),
                end,
                format!("variable `{name}` of {bytes} bytes"),
            )
        });
        let bytes = grouped(dynamic.1 - dynamic.0);
        let unnamed = format!("the {bytes} bytes of dynamic shared memory");
        let unnamed = (dynamic.1 > dynamic.0).then_some((dynamic.0, dynamic.1, unnamed));
        let below = named.chain(unnamed).filter(|v| v.0 <= offset);
        let (_, end, what) = below.max_by_key(|v| v.0)?;
        let distance = grouped(offset.checked_sub(end)?);
        Some(format!("{distance} bytes behind {what}"))
    }
}

/// A number with commas between its thousands.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(d);
    }
    text
}

/// Whether all these bytes are marked in a map.
///
/// # Safety
/// `map` has a byte for each 8 bytes of memory that has all of them.
pub(crate) unsafe fn marked(map: *const u8, offset: u64, bytes: u64) -> bool {
    (offset..offset + bytes).all(|at| {
        // SAFETY: the caller's contract.
        let n = unsafe { *map.add((at / 8) as usize) };
        at % 8 < u64::from(n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_gaps_and_bytes_between_them_are_not_marked() {
        let mut l = Layout::default();
        let (a, top) = l.place(0, (12, 4), "a", true).unwrap();
        let (b, top) = l.place(top, (16, 16), "b", true).unwrap();
        assert_eq!((a, b, top), (0, 80, 160));
        let map = l.map(200, (176, 200));
        // SAFETY: inside of the 200 bytes.
        let marked = |at, n| unsafe { marked(map.as_ptr(), at, n) };
        assert!(marked(0, 12) && marked(80, 16) && marked(176, 24));
        assert!(!marked(12, 1) && !marked(8, 8) && !marked(96, 4) && !marked(72, 8));
        assert_eq!(
            l.nearest(12, (176, 200)).unwrap(),
            "0 bytes behind variable `a` of 12 bytes"
        );
        assert_eq!(
            l.nearest(204, (176, 200)).unwrap(),
            "4 bytes behind the 24 bytes of dynamic shared memory"
        );
        assert_eq!(l.place(top, (8, 8), "c", false), Some((160, 168)));
    }
}
