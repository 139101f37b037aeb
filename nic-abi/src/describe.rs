//! The contract as tables, for the generators.
//!
//! The macros here define a Rust item and its table row together, so that a constant cannot exist
//! without being generated for CUDA and SystemVerilog.

/// One named constant.
#[derive(Debug, Clone, Copy)]
pub struct Const {
    /// Upper-case name without the `RB_` prefix.
    pub name: &'static str,
    /// Value, widened.
    pub value: u64,
    /// One-line meaning, from the doc comment.
    pub doc: &'static str,
}

/// One bit field of a 64-bit word of a descriptor, completion or event.
#[derive(Debug, Clone, Copy)]
pub struct BitField {
    /// Upper-case name without the `RB_` prefix.
    pub name: &'static str,
    /// Index of the 64-bit word.
    pub word: u32,
    /// Lowest bit.
    pub shift: u32,
    /// Width in bits.
    pub bits: u32,
    /// One-line meaning.
    pub doc: &'static str,
}

/// One field of a `#[repr(C)]` structure.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Field name.
    pub name: &'static str,
    /// Rust type as written: `u32`, `u64`.
    pub ty: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// One-line meaning.
    pub doc: &'static str,
}

/// One `#[repr(C)]` structure.
#[derive(Debug, Clone, Copy)]
pub struct Struct {
    /// C name, with the `rb_` prefix.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Fields in order.
    pub fields: &'static [Field],
    /// One-line meaning.
    pub doc: &'static str,
}

/// Defines a C-like enum with `from_code`, `code`, `name` and a generator table.
#[macro_export]
macro_rules! coded_enum {
    ($(#[doc = $edoc:literal])+ $vis:vis enum $Name:ident : $repr:ty [$prefix:literal] {
        $( $(#[doc = $doc:literal])+ $Var:ident = $val:literal => $cname:literal, )+
    }) => {
        $(#[doc = $edoc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        $vis enum $Name { $( $(#[doc = $doc])+ $Var = $val, )+ }
        impl $Name {
            /// Every value, in numeric order.
            pub const ALL: &'static [$Name] = &[$($Name::$Var,)+];
            /// Rows for the generators.
            pub const TABLE: &'static [$crate::describe::Const] = &[$(
                $crate::describe::Const { name: concat!($prefix, $cname), value: $val as u64, doc: concat!($($doc, "\n"),+) },
            )+];
            /// The numeric code as it crosses the border.
            pub const fn code(self) -> $repr { self as $repr }
            /// The value with this code, if there is one; an unknown code is data, never a panic.
            pub const fn from_code(code: $repr) -> Option<Self> {
                match code { $( $val => Some($Name::$Var), )+ _ => None }
            }
            /// Upper-case name as in the C header, without prefix.
            pub const fn name(self) -> &'static str { match self { $( $Name::$Var => $cname, )+ } }
        }
    };
}

/// Defines a `#[repr(C)]` structure of plain integers and its generator table.
#[macro_export]
macro_rules! abi_struct {
    ($(#[doc = $sdoc:literal])+ $vis:vis struct $Name:ident [$cname:literal] {
        $( $(#[doc = $doc:literal])+ $field:ident : $ty:ident, )+
    }) => {
        $(#[doc = $sdoc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[repr(C)]
        $vis struct $Name { $( $(#[doc = $doc])+ pub $field: $ty, )+ }
        impl $Name {
            /// Layout rows for the generators and the layout tests.
            pub const LAYOUT: $crate::describe::Struct = $crate::describe::Struct {
                name: $cname,
                size: core::mem::size_of::<$Name>(),
                doc: concat!($($sdoc, "\n"),+),
                fields: &[$( $crate::describe::Field {
                    name: stringify!($field), ty: stringify!($ty),
                    offset: core::mem::offset_of!($Name, $field), doc: concat!($($doc, "\n"),+),
                }, )+],
            };
        }
    };
}

/// Defines bit fields of 64-bit words: a constant [`BitField`] each, and a table of all.
#[macro_export]
macro_rules! bit_fields {
    ($table:ident: $( $(#[doc = $doc:literal])+ $NAME:ident = word $w:literal [$shift:literal +: $bits:literal] => $cname:literal; )+) => {
        $( $(#[doc = $doc])+ pub const $NAME: $crate::describe::BitField = $crate::describe::BitField {
            name: $cname, word: $w, shift: $shift, bits: $bits, doc: concat!($($doc, "\n"),+) }; )+
        /// Rows for the generators.
        pub const $table: &[$crate::describe::BitField] = &[$($NAME,)+];
    };
}

impl BitField {
    /// Mask of the field, already shifted.
    pub const fn mask(&self) -> u64 {
        let ones = if self.bits == 64 {
            u64::MAX
        } else {
            (1u64 << self.bits) - 1
        };
        ones << self.shift
    }
    /// Extracts the field from its word.
    pub const fn of(&self, word: u64) -> u64 {
        (word & self.mask()) >> self.shift
    }
    /// The field holding `value`, ready to be OR-ed into its word; excess high bits are cut.
    pub const fn put(&self, value: u64) -> u64 {
        (value << self.shift) & self.mask()
    }
}
