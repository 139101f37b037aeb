//! Registers and doorbells of a card, beside the GPU of a [`Nic`].

use std::sync::Arc;

use ringbell_card::{CardBar, DoorbellError, Doorbells};

use crate::Nic;

impl Nic {
    /// Maps the doorbells of a card for the kernels of this NIC's GPU; the queues' handles then
    /// come from [`Doorbells::handle`].
    ///
    /// # Errors
    /// [`DoorbellError`]: the GPU's driver refuses.
    ///
    /// # Examples
    /// The card is this software NIC itself, by a mapping of its own of the file that its BAR lies
    /// in:
    /// ```
    /// use ringbell::parts::card::CardBar;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nic = ringbell::Nic::builder().open()?;
    /// let card = CardBar::open(&nic.backend().bar_file().display().to_string())?;
    /// let doorbells = nic.doorbells(card)?;
    /// let handle = doorbells.handle(&nic.create_queue()?);
    /// assert_ne!(handle.doorbell, 0);
    /// println!("{}", doorbells.describe());
    /// # Ok(())
    /// # }
    /// ```
    pub fn doorbells(&self, card: CardBar) -> Result<Doorbells, DoorbellError> {
        Doorbells::open(Arc::new(card), &*self.gpu().memory())
    }
}
