//! Engines by name: `checksum|hll:p=14,width=4|cast:f32-bf16`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

use super::cast::{Cast, CastEngine};
use super::checksum::ChecksumEngine;
use super::filter::{Compare, Constant, FilterConfig, FilterEngine};
use super::hll::{HashKind, HllConfig, HllEngine};
use super::{Chain, StreamEngine};

/// Why no engine could be made from a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no engine at that place.
    #[error(
        "no engine at place {place} of `{spec}`; write engines as in `hll:p=14|cast:f32-bf16`"
    )]
    Empty {
        /// The whole text.
        spec: String,
        /// From 1.
        place: usize,
    },
    /// No engine has that name.
    #[error("no engine named `{name}`; known: {known}")]
    UnknownEngine {
        /// The name.
        name: String,
        /// Names of all engines.
        known: String,
    },
    /// The engine has no such option.
    #[error("engine {engine} has no option `{option}`; it takes {known}")]
    UnknownOption {
        /// The engine.
        engine: String,
        /// The option, or a word without a name.
        option: String,
        /// What it takes.
        known: String,
    },
    /// An option stands there twice.
    #[error("engine {engine}: option `{option}` stands there twice")]
    Twice {
        /// The engine.
        engine: String,
        /// The option.
        option: String,
    },
    /// An option that it cannot do without.
    #[error("engine {engine} needs `{option}`: {what}")]
    Missing {
        /// The engine.
        engine: String,
        /// The option.
        option: String,
        /// What it is.
        what: String,
    },
    /// An option has a value that it cannot have.
    #[error("engine {engine}: `{option}` cannot be `{value}`; give {expected}")]
    Value {
        /// The engine.
        engine: String,
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// What it can be.
        expected: String,
    },
    /// The options are well-formed, but the engine refuses them together.
    #[error("engine {engine}: {reason}")]
    Refused {
        /// The engine.
        engine: String,
        /// Its own message.
        reason: String,
    },
}

/// The options of one engine, as in `p=14,width=4` or `f32-bf16`. An engine's maker takes those
/// that it knows; what is left is an error.
#[derive(Debug)]
pub struct Options {
    engine: String,
    /// Name (empty for a word alone) and value.
    left: Vec<(String, String)>,
    /// Names that were asked for.
    asked: Vec<&'static str>,
}

impl Options {
    fn parse(engine: &str, text: &str) -> Result<Options, SpecError> {
        let mut left: Vec<(String, String)> = Vec::new();
        for option in text.split(',').filter(|o| !o.trim().is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or(("", option));
            let (name, value) = (name.trim(), value.trim());
            if left.iter().any(|(other, _)| other == name) {
                return Err(SpecError::Twice {
                    engine: engine.into(),
                    option: if name.is_empty() { value } else { name }.into(),
                });
            }
            left.push((name.into(), value.into()));
        }
        Ok(Options {
            engine: engine.into(),
            left,
            asked: Vec::new(),
        })
    }

    /// The value of an option. The one word that may stand alone has the empty name.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        self.asked.push(name);
        let at = self.left.iter().position(|(n, _)| n == name)?;
        Some(self.left.remove(at).1)
    }

    /// An option that is anything with a text form, or `None`. `expected` ends the sentence "give
    /// …".
    ///
    /// # Errors
    /// A value that is none.
    pub fn value<T: FromStr>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, SpecError> {
        match self.text(name) {
            None => Ok(None),
            Some(value) => match value.parse() {
                Ok(parsed) => Ok(Some(parsed)),
                Err(_) => Err(self.wrong(name, &value, expected)),
            },
        }
    }

    /// One of several names, or `None`.
    ///
    /// # Errors
    /// A name that is none of them; the message lists them.
    pub fn choice<T>(
        &mut self,
        name: &'static str,
        all: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let mut names = Vec::new();
        for (name, choice) in all {
            if name == value {
                return Ok(Some(choice));
            }
            names.push(name);
        }
        Err(self.wrong(name, &value, &names.join(", ")))
    }

    /// The error for a value that an option cannot have.
    pub fn wrong(&self, option: &str, value: &str, expected: &str) -> SpecError {
        SpecError::Value {
            engine: self.engine.clone(),
            option: option.into(),
            value: value.into(),
            expected: expected.into(),
        }
    }

    /// The error for an option that must be there.
    pub fn missing(&self, option: &str, what: &str) -> SpecError {
        SpecError::Missing {
            engine: self.engine.clone(),
            option: option.into(),
            what: what.into(),
        }
    }

    /// The error for options that do not go together.
    pub fn refused(&self, reason: impl Display) -> SpecError {
        SpecError::Refused {
            engine: self.engine.clone(),
            reason: reason.to_string(),
        }
    }

    fn finish(self) -> Result<(), SpecError> {
        let Some((name, value)) = self.left.into_iter().next() else {
            return Ok(());
        };
        let names = self.asked.iter().filter(|n| !n.is_empty());
        let known: Vec<String> = names.map(|n| format!("{n}=")).collect();
        Err(SpecError::UnknownOption {
            engine: self.engine,
            option: if name.is_empty() { value } else { name },
            known: match known.is_empty() {
                true if self.asked.is_empty() => "none".into(),
                true => "one word".into(),
                false => known.join(", "),
            },
        })
    }
}

/// Makes an engine from its options.
pub type Maker = dyn Fn(&mut Options) -> Result<Box<dyn StreamEngine>, SpecError> + Send + Sync;

/// Engines by name. A user's crate adds its own.
///
/// ```
/// use ringbell_onc_engines::stream::cast::{Cast, CastEngine};
/// use ringbell_onc_engines::stream::Registry;
///
/// let mut registry = Registry::builtin();
/// registry.add("to-half", |_options| Ok(Box::new(CastEngine::new(Cast::F32ToF16))));
/// let engine = registry.make("hll:p=14,width=4 | to-half").unwrap();
/// assert!(!engine.is_tap());
/// ```
pub struct Registry {
    makers: BTreeMap<String, Box<Maker>>,
}

impl Registry {
    /// No engines.
    pub fn empty() -> Registry {
        Registry {
            makers: BTreeMap::new(),
        }
    }

    /// The engines of this crate:
    ///
    /// - `hll` with `p=` precision, `width=`, `hash=` and `result=` (`sketch` or `summary`):
    ///   [`HllEngine`];
    /// - `filter` with `record=`, `at=`, `type=`, `op=`, `value=` and `keep=` (`8..16`):
    ///   [`FilterEngine`];
    /// - `cast` with a word as `f32-bf16`: [`CastEngine`];
    /// - `checksum`: [`ChecksumEngine`].
    pub fn builtin() -> Registry {
        let mut registry = Registry::empty();
        registry.add("hll", hll);
        registry.add("filter", filter);
        registry.add("cast", cast);
        registry.add("checksum", |_| Ok(Box::new(ChecksumEngine::new())));
        registry
    }

    /// Adds an engine; an older one of the same name is replaced.
    pub fn add(
        &mut self,
        name: &str,
        maker: impl Fn(&mut Options) -> Result<Box<dyn StreamEngine>, SpecError> + Send + Sync + 'static,
    ) {
        self.makers.insert(name.into(), Box::new(maker));
    }

    /// The names of all engines.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.makers.keys().map(String::as_str)
    }

    /// The engine that a text describes: one, or several separated by `|` as a [`Chain`].
    ///
    /// # Errors
    /// [`SpecError`] names the engine and the option.
    pub fn make(&self, spec: &str) -> Result<Box<dyn StreamEngine>, SpecError> {
        let mut engines = Vec::new();
        for (i, one) in spec.split('|').enumerate() {
            let (name, options) = one.split_once(':').unwrap_or((one, ""));
            let name = name.trim();
            if name.is_empty() {
                return Err(SpecError::Empty {
                    spec: spec.into(),
                    place: i + 1,
                });
            }
            let Some(maker) = self.makers.get(name) else {
                return Err(SpecError::UnknownEngine {
                    name: name.into(),
                    known: self.names().collect::<Vec<_>>().join(", "),
                });
            };
            let mut options = Options::parse(name, options)?;
            let engine = maker(&mut options)?;
            options.finish()?;
            engines.push(engine);
        }
        if engines.len() == 1 {
            return Ok(engines.remove(0));
        }
        Ok(Box::new(Chain::new(engines)))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

fn hll(options: &mut Options) -> Result<Box<dyn StreamEngine>, SpecError> {
    let mut config = HllConfig::default();
    if let Some(precision) = options.value("p", "a precision of 4 to 18")? {
        config.precision = precision;
    }
    if let Some(width) = options.value("width", "1, 2, 4, 8 or 16 bytes")? {
        config.width = width;
    }
    if let Some(hash) = options.choice("hash", HashKind::ALL.map(|h| (h.name(), h)))? {
        config.hash = hash;
    }
    if let Some(image) = options.choice("result", [("sketch", true), ("summary", false)])? {
        config.image = image;
    }
    let engine = HllEngine::new(config).map_err(|e| options.refused(e))?;
    Ok(Box::new(engine))
}

fn filter(options: &mut Options) -> Result<Box<dyn StreamEngine>, SpecError> {
    let record = options.value("record", "the bytes of a record")?;
    let record = record.ok_or_else(|| options.missing("record", "the bytes of a record"))?;
    let field_at = options.value("at", "where the field begins in a record")?;
    let types = Constant::TYPES.map(|t| (t, t));
    let ty = options.choice("type", types)?.unwrap_or("u32");
    let compare = options.choice("op", Compare::NAMES)?.unwrap_or(Compare::Eq);
    let what = format!("what the field is compared with, a {ty}");
    let text = options.text("value");
    let text = text.ok_or_else(|| options.missing("value", &what))?;
    let constant = Constant::parse(ty, &text);
    let constant = constant.ok_or_else(|| options.wrong("value", &text, &what))?;
    let keep = match options.text("keep") {
        None => 0..record,
        Some(text) => parse_range(&text)
            .ok_or_else(|| options.wrong("keep", &text, "bytes of the record, as in 8..16"))?,
    };
    let engine = FilterEngine::new(FilterConfig {
        record,
        field_at: field_at.unwrap_or(0),
        compare,
        constant,
        keep,
    });
    Ok(Box::new(engine.map_err(|e| options.refused(e))?))
}

fn parse_range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once("..")?;
    Some(start.trim().parse().ok()?..end.trim().parse().ok()?)
}

fn cast(options: &mut Options) -> Result<Box<dyn StreamEngine>, SpecError> {
    let cast = options.choice("", Cast::ALL.map(|c| (c.name(), c)))?;
    let names = Cast::ALL.map(Cast::name).join(", ");
    let cast = cast.ok_or_else(|| options.missing("FROM-TO", &names))?;
    Ok(Box::new(CastEngine::new(cast)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::hll::HllSummary;

    fn error(spec: &str) -> String {
        match Registry::builtin().make(spec) {
            Ok(engine) => panic!("`{spec}` became {}", engine.name()),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn texts_become_engines() {
        let registry = Registry::builtin();
        for (spec, name, tap) in [
            ("hll", "hll", true),
            (" hll : p=4 , width=8,hash=murmur3 ", "hll", true),
            ("cast:f32-bf16", "cast", false),
            ("hll|hll:width=1", "chain", true),
            ("hll:p=14,width=4|cast:f32-bf16|hll:width=2", "chain", false),
            (
                "filter:record=16,at=8,type=i64,op=lt,value=-3,keep=0..8",
                "filter",
                false,
            ),
            ("filter:record=4,value=7", "filter", false),
            ("checksum", "checksum", true),
        ] {
            let engine = registry.make(spec).unwrap();
            assert_eq!((engine.name(), engine.is_tap()), (name, tap), "{spec}");
        }
    }

    #[test]
    fn options_reach_the_engine() {
        let registry = Registry::builtin();
        let mut engine = registry.make("hll:p=5,width=2,result=summary").unwrap();
        engine.process(&[1, 0, 2, 0, 1, 0], &mut Vec::new());
        let mut result = Vec::new();
        engine.result(&mut result);
        assert_eq!(result.len(), HllSummary::BYTES);
        assert_eq!(HllSummary::read(&result).unwrap().items, 3);
        let mut engine = registry
            .make("filter:record=2,at=1,type=i8,op=gt,value=-2,keep=1..2")
            .unwrap();
        let mut out = Vec::new();
        engine.process(&[9, 0xfe, 9, 0xff, 9, 3], &mut out);
        assert_eq!(out, [0xff, 3]);
    }

    #[test]
    fn errors_name_the_engine_the_option_and_the_valid_values() {
        for (spec, parts) in [
            ("", &["place 1"][..]),
            ("hll||cast:f32-f16", &["place 2"]),
            ("sha", &["`sha`", "cast, checksum, filter, hll"]),
            ("hll:q=3", &["hll", "`q`", "p=", "width="]),
            ("hll:14", &["hll", "`14`", "p="]),
            ("hll:p=14,p=15", &["`p`", "twice"]),
            ("hll:p=x", &["`p`", "`x`", "4 to 18"]),
            ("hll:p=19", &["hll", "19", "4 to 18"]),
            ("hll:width=3", &["width 3", "1, 2, 4, 8 or 16"]),
            ("hll:hash=md5", &["`md5`", "mix, murmur3, datasketches"]),
            ("cast", &["cast", "f32-bf16"]),
            ("cast:f32-i8", &["`f32-i8`", "bf16-f32"]),
            ("cast:f32-f16,f32-bf16", &["cast", "twice"]),
            ("filter:value=1", &["`record`"]),
            ("filter:record=8", &["`value`", "u32"]),
            ("filter:record=8,type=u8,value=256", &["`256`", "u8"]),
            ("filter:record=8,at=6,value=1", &["4 bytes at 6"]),
            ("filter:record=8,value=1,keep=4", &["`keep`", "8..16"]),
        ] {
            let message = error(spec);
            for part in parts {
                assert!(message.contains(part), "`{spec}`: {message}");
            }
        }
    }
}
