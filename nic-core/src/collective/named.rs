//! Settings by name, for command lines and other languages.

use ringbell_onc_engines::program::HostRanks;

use super::settings::CollectiveSettings;
use crate::config::ConfigError;

/// What a name stands for.
enum Field<'a> {
    Bytes(&'a mut u64),
    Count(&'a mut u32),
    Switch(&'a mut bool),
    Hosts(&'a mut HostRanks),
}

impl CollectiveSettings {
    /// Names of the settings that [`set`](CollectiveSettings::set) takes: those of the fields, here
    /// and in [`Thresholds`](ringbell_onc_engines::program::Thresholds). The time-out of connecting
    /// is set elsewhere.
    pub const NAMES: [&'static str; 20] = [
        "eager_max",
        "eager_buffers",
        "segment_bytes",
        "segments_in_flight",
        "scratch_bytes",
        "stream_bytes",
        "staging_bytes",
        "direct",
        "direct_eager_bytes",
        "flat_ranks",
        "whole_sources",
        "all_reduce_ring",
        "broadcast_chain",
        "gather_tree",
        "all_gather_ring",
        "deterministic",
        "card",
        "trees",
        "host_ranks",
        "linked_ranks",
    ];

    /// The settings that every rank must give alike, by name.
    pub fn agreed(&self) -> [(&'static str, u64); 15] {
        let [flat, whole, ring, chain, tree, gather] = self.thresholds.words();
        [
            ("segment_bytes", self.segment_bytes),
            ("segments_in_flight", self.segments_in_flight.into()),
            ("scratch_bytes", self.scratch_bytes),
            ("stream_bytes", self.stream_bytes),
            ("direct", self.direct.into()),
            ("direct_eager_bytes", self.direct_eager_bytes),
            ("deterministic", self.deterministic.into()),
            ("trees", self.trees.into()),
            ("host_ranks", self.host_ranks.word().into()),
            ("flat_ranks", flat),
            ("whole_sources", whole),
            ("all_reduce_ring", ring),
            ("broadcast_chain", chain),
            ("gather_tree", tree),
            ("all_gather_ring", gather),
        ]
    }

    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        let t = &mut self.thresholds;
        Some(match name {
            "eager_max" => Field::Bytes(&mut self.eager_max),
            "eager_buffers" => Field::Count(&mut self.eager_buffers),
            "segment_bytes" => Field::Bytes(&mut self.segment_bytes),
            "segments_in_flight" => Field::Count(&mut self.segments_in_flight),
            "scratch_bytes" => Field::Bytes(&mut self.scratch_bytes),
            "stream_bytes" => Field::Bytes(&mut self.stream_bytes),
            "staging_bytes" => Field::Bytes(&mut self.staging_bytes),
            "direct" => Field::Switch(&mut self.direct),
            "direct_eager_bytes" => Field::Bytes(&mut self.direct_eager_bytes),
            "flat_ranks" => Field::Count(&mut t.flat_ranks),
            "whole_sources" => Field::Bytes(&mut t.whole_sources),
            "all_reduce_ring" => Field::Bytes(&mut t.all_reduce_ring),
            "broadcast_chain" => Field::Bytes(&mut t.broadcast_chain),
            "gather_tree" => Field::Bytes(&mut t.gather_tree),
            "all_gather_ring" => Field::Bytes(&mut t.all_gather_ring),
            "deterministic" => Field::Switch(&mut self.deterministic),
            "card" => Field::Switch(&mut self.card),
            "trees" => Field::Switch(&mut self.trees),
            "host_ranks" => Field::Hosts(&mut self.host_ranks),
            "linked_ranks" => Field::Count(&mut self.linked_ranks),
            _ => return None,
        })
    }

    /// Those of [`NAMES`](CollectiveSettings::NAMES) that differ from others' settings, and their
    /// values. That of hosts with different numbers of ranks is [a word](HostRanks::word).
    pub fn unlike(&self, others: &CollectiveSettings) -> Vec<(&'static str, u64)> {
        let (mut own, mut others) = (self.clone(), others.clone());
        let value = |s: &mut CollectiveSettings, name| match s.field(name)? {
            Field::Bytes(f) => Some(*f),
            Field::Count(f) => Some(u64::from(*f)),
            Field::Switch(f) => Some(u64::from(*f)),
            Field::Hosts(f) => Some(f.word().into()),
        };
        let all = CollectiveSettings::NAMES.into_iter().filter_map(|name| {
            let is = value(&mut own, name)?;
            (value(&mut others, name) != Some(is)).then_some((name, is))
        });
        all.collect()
    }

    /// Sets one of [`NAMES`](CollectiveSettings::NAMES): bytes, a number, or 0 and 1 for a switch.
    /// What settings say together is checked later, by [`validate`](CollectiveSettings::validate).
    ///
    /// # Errors
    /// There is no such setting, or the value does not fit it.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), ConfigError> {
        let refuse = |why| {
            // The name of the table: that of the caller does not live long enough.
            let known = CollectiveSettings::NAMES.into_iter().find(|n| *n == name);
            let setting = known.unwrap_or("collective");
            Err(ConfigError { setting, why })
        };
        match self.field(name) {
            Some(Field::Bytes(f)) => *f = value,
            Some(field @ (Field::Count(_) | Field::Hosts(_))) => match (field, value.try_into()) {
                (Field::Count(f), Ok(v)) => *f = v,
                (Field::Hosts(f), Ok(v)) => *f = u32::into(v),
                _ => return refuse(format!("{value} is above {}", u32::MAX)),
            },
            Some(Field::Switch(f)) => match value {
                0 | 1 => *f = value == 1,
                _ => return refuse(format!("{value} is neither 0 (off) nor 1 (on)")),
            },
            None => {
                let names = CollectiveSettings::NAMES.join(", ");
                return refuse(format!(
                    "there is no setting `{name}`; the names are {names}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_sets_a_field_of_its_own() {
        let mut seen = Vec::new();
        for name in CollectiveSettings::NAMES {
            let mut s = CollectiveSettings::default();
            s.set(
                name,
                u64::from(["deterministic", "host_ranks", "linked_ranks"].contains(&name)),
            )
            .expect("a name");
            assert_ne!(s, CollectiveSettings::default(), "{name}");
            assert!(!seen.contains(&s), "{name} is another's field");
            let unlike = s.unlike(&CollectiveSettings::default());
            assert!(matches!(unlike[..], [(n, _)] if n == name), "{unlike:?}");
            // What a rank may choose for itself; all else is compared, under its name.
            let own = ["eager_max", "eager_buffers", "staging_bytes", "card"].contains(&name);
            let both = s
                .agreed()
                .into_iter()
                .zip(CollectiveSettings::default().agreed());
            let differs: Vec<_> = both.filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
            // It is compared together with `host_ranks`.
            let own = own || name == "linked_ranks";
            assert_eq!(differs, if own { vec![] } else { vec![name] });
            seen.push(s);
        }
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        let mut s = CollectiveSettings::default();
        let text = |r: Result<(), ConfigError>| r.expect_err("refused").to_string();
        let e = text(s.set("ring", 1));
        assert!(e.contains("`ring`") && e.contains("all_reduce_ring"), "{e}");
        let e = text(s.set("flat_ranks", 1 << 32));
        assert!(e.contains("flat_ranks") && e.contains("4294967296"), "{e}");
        let e = text(s.set("direct", 2));
        assert!(e.contains("`direct`"), "{e}");
        assert_eq!(s, CollectiveSettings::default(), "nothing was changed");
        // Against each other: found when the communicator is made.
        s.set("all_reduce_ring", 1 << 10).expect("a number");
        let e = text(s.validate());
        assert!(e.contains("whole_sources"), "{e}");
    }
}
