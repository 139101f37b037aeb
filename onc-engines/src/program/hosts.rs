//! The hosts of ranks: which of them share one.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

use super::hash::Fnv;

/// Most ranks that a program can have: chunk numbers up to ranks² fit 32 bits.
pub const MAX_RANKS: u32 = 65_535;

/// Which ranks share a host.
///
/// It is one number where every host has as many consecutive ranks, and otherwise the host of each
/// rank. Written as text it is `4`, or `3,2,4` for hosts of so many consecutive ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRanks(Hosts);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hosts {
    /// So many consecutive ranks on each; 0: not known.
    Each(u32),
    /// The host of each rank, and how many ranks the smallest has. Hosts are numbered in the order
    /// of their first ranks.
    Of(Arc<[u32]>, u32),
}

impl Default for HostRanks {
    /// Not known.
    fn default() -> HostRanks {
        HostRanks::from(0)
    }
}

impl From<u32> for HostRanks {
    /// As many consecutive ranks on each host; 0: not known.
    fn from(each: u32) -> HostRanks {
        HostRanks(Hosts::Each(each))
    }
}

impl HostRanks {
    /// From what names the host of each rank, by rank.
    pub fn of_hosts<T: Eq + Hash>(hosts: impl IntoIterator<Item = T>) -> HostRanks {
        let mut numbers = HashMap::new();
        let number = |host| {
            let next = numbers.len() as u32;
            *numbers.entry(host).or_insert(next)
        };
        HostRanks::listed(hosts.into_iter().map(number).collect()).plain()
    }

    /// Hosts with so many consecutive ranks.
    pub fn of_sizes(sizes: &[u32]) -> HostRanks {
        let of = |(host, size): (u32, &u32)| std::iter::repeat_n(host, *size as usize);
        HostRanks::listed((0..).zip(sizes).flat_map(of).collect())
    }

    fn listed(hosts: Arc<[u32]>) -> HostRanks {
        let least = sizes(hosts.iter().copied()).into_iter().min();
        HostRanks(Hosts::Of(hosts, least.unwrap_or(0)))
    }

    /// The same as one number where that says it.
    pub(super) fn plain(self) -> HostRanks {
        match self.each() {
            Some(each) => HostRanks::from(each),
            None => self,
        }
    }

    /// How many consecutive ranks every host has, where all have as many. 0: not known.
    pub fn each(&self) -> Option<u32> {
        let hosts = match &self.0 {
            Hosts::Each(each) => return Some(*each),
            Hosts::Of(hosts, _) => hosts,
        };
        let each = hosts.iter().take_while(|host| **host == 0).count();
        let is_at = |(rank, host): (usize, &u32)| rank / each == *host as usize;
        let are_alike = each == 0 || hosts.iter().enumerate().all(is_at);
        // No ranks have no host that could be named.
        let are_whole = each == 0 || hosts.len().is_multiple_of(each);
        (are_alike && are_whole).then_some(each as u32)
    }

    /// Whether so many ranks can have these hosts.
    pub fn fits(&self, ranks: u32) -> bool {
        match &self.0 {
            Hosts::Each(each) => *each > 0 && ranks.is_multiple_of(*each),
            Hosts::Of(hosts, _) => hosts.len() == ranks as usize,
        }
    }

    /// Whether all of so many ranks share one host, or may: nothing is known of hosts.
    pub fn may_be_one(&self, ranks: u32) -> bool {
        match &self.0 {
            Hosts::Each(each) => *each == 0 || *each >= ranks,
            Hosts::Of(hosts, _) => hosts.iter().all(|host| *host == 0),
        }
    }

    /// How many ranks the largest host has.
    pub fn most(&self, ranks: u32) -> u32 {
        match &self.0 {
            Hosts::Each(each) => *each,
            Hosts::Of(..) => self.sizes(ranks).into_iter().max().unwrap_or(0),
        }
    }

    /// The host of a rank.
    pub(super) fn host_of(&self, rank: u32) -> u32 {
        match &self.0 {
            Hosts::Each(each) => rank / each.max(&1),
            Hosts::Of(hosts, _) => hosts.get(rank as usize).copied().unwrap_or(0),
        }
    }

    /// How many of so many ranks each host has, by the number of the host.
    pub(super) fn sizes(&self, ranks: u32) -> Vec<u32> {
        sizes((0..ranks).map(|rank| self.host_of(rank)))
    }

    /// How many of so many ranks the smallest host has; 0: not known, or there are no such hosts.
    pub(super) fn least(&self, ranks: u32) -> u32 {
        match &self.0 {
            _ if !self.fits(ranks) => 0,
            Hosts::Each(each) => *each,
            Hosts::Of(_, least) => *least,
        }
    }

    /// A word that differs, but for chance, where the hosts do. It is the number where one says it.
    pub fn word(&self) -> u32 {
        if let Some(each) = self.each() {
            return each;
        }
        let mut hash = Fnv::new();
        self.add_to(&mut hash);
        // No number of ranks has this bit.
        1 << 31 | hash.value() as u32
    }

    pub(super) fn add_to(&self, hash: &mut Fnv) {
        match &self.0 {
            Hosts::Each(each) => hash.word(*each),
            Hosts::Of(hosts, _) => hosts.iter().for_each(|host| hash.word(*host)),
        }
    }

    /// Why so many ranks cannot have these hosts.
    pub fn why_not(&self, ranks: u32) -> String {
        match &self.0 {
            Hosts::Each(0) => "their hosts are not known; give the setting `host_ranks`".into(),
            Hosts::Each(each) => format!("{ranks} ranks cannot be {each} on each"),
            Hosts::Of(hosts, _) => {
                let all = hosts.len();
                format!("hosts of {self} ranks have {all} in all, and there are {ranks}")
            }
        }
    }
}

/// How often each number occurs.
fn sizes(hosts: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut sizes = Vec::new();
    for host in hosts.map(|host| host as usize) {
        if host >= sizes.len() {
            sizes.resize(host + 1, 0);
        }
        sizes[host] += 1;
    }
    sizes
}

impl fmt::Display for HostRanks {
    /// As it is read. Where ranks of a host are apart, runs of them are listed as `HOST:RANKS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = match &self.0 {
            Hosts::Each(each) => return write!(f, "{each}"),
            Hosts::Of(hosts, _) => hosts,
        };
        let runs: Vec<_> = hosts.chunk_by(|a, b| a == b).collect();
        let is_apart = (0..).zip(&runs).any(|(host, run)| run[0] != host);
        for (k, run) in runs.into_iter().enumerate() {
            f.write_str(if k > 0 { "," } else { "" })?;
            if is_apart {
                write!(f, "{}:", run[0])?;
            }
            write!(f, "{}", run.len())?;
        }
        Ok(())
    }
}

impl FromStr for HostRanks {
    type Err = String;

    fn from_str(text: &str) -> Result<HostRanks, String> {
        let number = |part: &str| part.trim().parse::<u32>().ok();
        if let Some(each) = number(text) {
            return Ok(HostRanks::from(each));
        }
        let sizes: Option<Vec<u32>> = text.split(',').map(number).collect();
        let most = MAX_RANKS.into();
        let can_be = |sizes: &Vec<u32>| {
            let all = sizes.iter().copied().map(u64::from).sum::<u64>();
            sizes.iter().all(|size| *size > 0) && all <= most
        };
        let sizes = sizes.filter(can_be).ok_or_else(|| {
            format!("`{text}` is neither the ranks of each host, as 4, nor those of one after the other, as 3,2,4")
        })?;
        Ok(HostRanks::of_sizes(&sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_as_many_ranks_in_a_row_are_one_number() {
        let of = |hosts: &[u64]| HostRanks::of_hosts(hosts).each();
        assert_eq!(of(&[]), Some(0));
        assert_eq!(of(&[7]), Some(1));
        assert_eq!(of(&[7, 7, 7]), Some(3));
        assert_eq!(of(&[7, 8, 9]), Some(1));
        assert_eq!(of(&[7, 7, 3, 3, 9, 9]), Some(2));
        assert_eq!(of(&[7, 7, 3, 3, 9]), None, "hosts differ");
        assert_eq!(of(&[7, 3, 7, 3]), None, "dealt out");
        assert_eq!(of(&[7, 7, 3, 3, 7, 7]), None, "two runs of one host");
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<HostRanks>().unwrap();
        for text in ["0", "4", "3,2,4", "1,1,5"] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("3,2,4").sizes(9), [3, 2, 4]);
        assert_eq!(HostRanks::of_hosts([5, 6, 6, 5]).to_string(), "0:1,1:2,0:1");
        for text in ["", "x", "3,,4", "3,0", "3,-1", "65535,65535"] {
            let e = text.parse::<HostRanks>().unwrap_err();
            assert!(e.contains("3,2,4"), "{e}");
        }
    }

    #[test]
    fn a_word_tells_hosts_apart_however_they_are_written() {
        let (each, listed) = (HostRanks::from(3), HostRanks::of_sizes(&[3, 3]));
        assert_eq!((each.word(), listed.word()), (3, 3));
        assert_eq!(listed.clone().plain(), each);
        let (a, b) = (HostRanks::of_sizes(&[3, 2]), HostRanks::of_sizes(&[2, 3]));
        assert_ne!(a.word(), b.word());
        assert!(a.word() > MAX_RANKS);
        assert!(each.fits(6) && !each.fits(7) && listed.fits(6) && !listed.fits(9));
        assert!(a.why_not(6).contains("hosts of 3,2 ranks have 5"));
    }
}
