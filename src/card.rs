//! Registers and doorbells of a card, beside the GPU of a [`Nic`].

use std::sync::Arc;

use ringbell_card::{CardBar, DoorbellChoice, DoorbellError, Doorbells, ProxyPolicy};

use crate::Nic;

/// Environment variable that says how kernels ring a card: `auto` (the default), `direct`, in the card's BAR
/// or not at all, or `proxy`, through a thread of the host.
pub const DOORBELLS_VARIABLE: &str = "RINGBELL_DOORBELLS";

/// Value of [`DOORBELLS_VARIABLE`]; an unknown word is reported and ignored.
pub fn doorbell_choice() -> DoorbellChoice {
    let asked = std::env::var(DOORBELLS_VARIABLE).unwrap_or_default();
    asked.parse().unwrap_or_else(|why| {
        tracing::warn!(%why, "{DOORBELLS_VARIABLE}: auto is used");
        DoorbellChoice::Auto
    })
}

impl Nic {
    /// Finds how the kernels of this NIC's GPU reach the doorbells of a card; the queues' handles then come from
    /// [`Doorbells::handle`].
    ///
    /// # Errors
    /// [`DoorbellError`]: the requested way is refused, or the system has no memory or no thread.
    ///
    /// # Examples
    /// The card is this software NIC itself, by a mapping of its own of the file that its BAR lies in:
    /// ```
    /// use ringbell::parts::card::{CardBar, DoorbellChoice};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nic = ringbell::Nic::builder().open()?;
    /// let card = CardBar::open(&nic.backend().bar_file().display().to_string())?;
    /// let doorbells = nic.doorbells(card, DoorbellChoice::Auto)?;
    /// let handle = doorbells.handle(&nic.create_queue()?);
    /// assert_ne!(handle.doorbell, 0);
    /// println!("{}", doorbells.describe());
    /// # Ok(())
    /// # }
    /// ```
    pub fn doorbells(
        &self,
        card: CardBar,
        choice: DoorbellChoice,
    ) -> Result<Doorbells, DoorbellError> {
        let memory = self.gpu().memory();
        Doorbells::open(Arc::new(card), &*memory, choice, ProxyPolicy::default())
    }
}
