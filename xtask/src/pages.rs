//! Programs that pages of the documentation show.

use anyhow::{Context as _, Result};

use crate::workspace::root;

/// The blocks of code in this language on a page of docs/.
pub(crate) fn blocks(page: &str, language: &str) -> Result<Vec<String>> {
    Ok(cut(&fs_err::read_to_string(root().join(page))?, language))
}

/// The first block of them.
///
/// # Errors
/// The page has none.
pub(crate) fn program(page: &str, language: &str) -> Result<String> {
    let first = blocks(page, language)?.into_iter().next();
    first.with_context(|| format!("{page} has no program in {language}"))
}

fn cut(markdown: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = markdown.split(&fence).skip(1);
    let texts = blocks.filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned() + "\n"));
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_at_their_fences() {
        let page = "a\n```cuda\nx\ny\n```\nb\n```sh\nz\n```\n";
        assert_eq!(cut(page, "cuda"), ["x\ny\n"]);
        assert!(cut("```cuda\nno end", "cuda").is_empty());
    }
}
