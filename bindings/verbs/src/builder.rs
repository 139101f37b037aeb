//! Requests that a program builds one by one, to post them together.

use std::ops::Range;

use ringbell_roce::verbs::{
    AddressHandle, Destination, Local, Posting, Request, SendFlags, SendRequest, Sge, VerbsError,
};

use crate::completion::Held;

/// A request that is being built.
pub(crate) struct Built {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) flags: SendFlags,
    /// Its pieces, or its inline bytes, in the builder's.
    pub(crate) local: Range<usize>,
    pub(crate) is_inline: bool,
    pub(crate) to: Option<(AddressHandle, u32, u32)>,
}

/// Requests that a program builds. One thread at a time, from `ibv_wr_start` on.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) held: Held,
    pub(crate) built: Vec<Built>,
    pub(crate) pieces: Vec<Sge>,
    pub(crate) bytes: Vec<u8>,
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.built.clear();
        self.pieces.clear();
        self.bytes.clear();
    }

    fn each(
        &self,
        mut each: impl FnMut(&SendRequest<'_>, Option<&Destination<'_>>) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        for b in &self.built {
            let bytes: &[u8] = match b.is_inline {
                true => &self.bytes[b.local.clone()],
                false => &[],
            };
            let parts = [bytes];
            let request = SendRequest {
                id: b.id,
                request: b.request,
                local: match b.is_inline {
                    true => Local::Inline(&parts),
                    false => Local::Registered(&self.pieces[b.local.clone()]),
                },
                flags: b.flags,
            };
            let to = b.to.as_ref().map(|(handle, number, key)| Destination {
                handle,
                number: *number,
                key: *key,
            });
            each(&request, to.as_ref())?;
        }
        Ok(())
    }

    /// Posts all requests, or none.
    pub(crate) fn post(&self, to: &mut Posting<'_>) -> Result<(), VerbsError> {
        to.reserve(self.built.len())?;
        self.each(|r, d| to.check(r, d))?;
        self.each(|r, d| match d {
            Some(d) => to.send_to(r, d),
            None => to.send(r),
        })
    }
}
