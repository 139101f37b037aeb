//! Contexts in virtual time.
#![allow(dead_code, unreachable_pub)] // Each user has a part of it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_net::port::roce::{RoceConfig, RocePort};
use ringbell_net::port::Port;
use ringbell_net::NicTime;
use ringbell_roce::verbs::{Context, ContextConfig};

/// Time that the test sets.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn now(&self) -> NicTime {
        NicTime(self.0.load(Ordering::Relaxed))
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A context on a socket behind `cable`, in this time.
    pub fn context<P: Port + 'static>(
        &self,
        config: &ContextConfig,
        cable: impl FnOnce(RocePort) -> P,
    ) -> Context {
        let bind = (Ipv4Addr::LOCALHOST, 0).into();
        let port = RocePort::open(&RoceConfig { bind, mtu: None }).expect("a socket");
        let clock = self.clone();
        Context::over(Box::new(cable(port)), config, move || clock.now()).expect("a context")
    }
}
