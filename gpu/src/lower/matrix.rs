//! Matrices of a warp (§9.7.14). What the lanes exchange goes through their threads' words; the
//! scheduler computes.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, InstBuilder, MemFlags, Type, Value};

use super::emit::{Emit, Lowered};
use crate::context::{why, Thread};
use crate::module::{Element, Fragment, MatrixOp, Operand, Place, Reg, Site, Target};
use crate::schedule::matrix;

/// Bytes of a row of 8 numbers of 16 bits.
const ROW: i64 = 16;

impl Emit<'_, '_> {
    /// `live` is what lives over a wait.
    pub(super) fn matrix(&mut self, op: &MatrixOp, site: Site, live: &[Reg]) -> Lowered<()> {
        match op {
            MatrixOp::Load {
                transpose,
                from,
                to,
            } => {
                self.exchange(from, to.len(), *transpose, site, live, &[]);
                let mut values = Vec::new();
                for j in 0..to.len() {
                    let (low, high) = self.parts(from, j, *transpose, false, site)?;
                    let flags = MemFlags::trusted();
                    let v = match high {
                        None => self.b.ins().load(types::I32, flags, low, 0),
                        Some(high) => {
                            let [low, high] = [low, high].map(|at| {
                                let v = self.b.ins().load(types::I16, flags, at, 0);
                                self.b.ins().uextend(types::I32, v)
                            });
                            let high = self.b.ins().ishl_imm(high, 16);
                            self.b.ins().bor(low, high)
                        }
                    };
                    values.push(v);
                }
                for (to, v) in to.iter().zip(values) {
                    self.set(*to, v, false);
                }
            }
            MatrixOp::Store {
                transpose,
                to,
                from,
            } => {
                let kept: Vec<Reg> = from.iter().filter_map(Operand::register).collect();
                self.exchange(to, from.len(), *transpose, site, live, &kept);
                for (j, from) in from.iter().enumerate() {
                    let (low, high) = self.parts(to, j, *transpose, true, site)?;
                    let v = self.value(from, types::I32);
                    let flags = MemFlags::trusted();
                    match high {
                        None => {
                            self.b.ins().store(flags, v, low, 0);
                        }
                        Some(high) => {
                            let upper = self.b.ins().ushr_imm(v, 16);
                            for (at, v) in [(low, v), (high, upper)] {
                                self.b.ins().istore16(flags, v, at, 0);
                            }
                        }
                    }
                }
            }
            MatrixOp::Transpose { to, from } => {
                let v = self.value(from, types::I32);
                self.put_word(v, 0);
                self.join(matrix::TRANSPOSE, site, live, to.as_slice());
                let v = self.word(types::I32, 0);
                self.set(*to, v, false);
            }
            MatrixOp::Multiply { product, to, args } => {
                let mut at = 0;
                for (list, e) in args.iter().zip([product.a, product.b, product.c]) {
                    let t = register_type(e);
                    for o in list {
                        let v = self.value(o, t);
                        self.put_word(v, at);
                        at += t.bytes() / 4;
                    }
                }
                let packed = self.int(types::I64, product.pack() as i64);
                self.put(packed, offset_of!(Thread, address));
                let written: Vec<Reg> = to.iter().copied().flatten().collect();
                self.join(matrix::MULTIPLY, site, live, &written);
                let t = register_type(product.d);
                for (i, to) in to.iter().enumerate() {
                    let v = self.word(t, i as u32 * t.bytes() / 4);
                    self.set(*to, v, false);
                }
            }
            MatrixOp::LoadFragment {
                fragment,
                from,
                stride,
                to,
            } => self.load_fragment(fragment, from, stride, to, site)?,
            MatrixOp::StoreFragment {
                fragment,
                to,
                stride,
                from,
            } => self.store_fragment(fragment, to, stride, from, site)?,
        }
        Ok(())
    }

    fn put_word(&mut self, v: Value, word: u32) {
        self.put(v, offset_of!(Thread, words) + word as usize * 4);
    }

    fn word(&mut self, t: Type, word: u32) -> Value {
        self.field(t, offset_of!(Thread, words) + word as usize * 4)
    }

    /// Waits for all lanes that have not ended. `written` is set by the instruction afterwards.
    fn join(&mut self, kind: u32, site: Site, live: &[Reg], written: &[Reg]) {
        let kind = self.int(types::I32, i64::from(kind));
        self.put(kind, offset_of!(Thread, kind));
        let all = self.int(types::I32, 0xffff_ffff);
        self.put(all, offset_of!(Thread, mask));
        let site = self.site(site);
        self.put(site, offset_of!(Thread, site));
        self.wait(why::WARP, live, written);
    }

    /// Each lane gives the address of a row, and gets those of the rows in which its parts of the
    /// matrices lie.
    fn exchange(
        &mut self,
        place: &Place,
        count: usize,
        transpose: bool,
        site: Site,
        live: &[Reg],
        kept: &[Reg],
    ) {
        let at = self.raw_address(&place.at);
        self.put(at, offset_of!(Thread, value));
        let count = self.int(types::I32, count as i64);
        self.put(count, offset_of!(Thread, b));
        let kind = if transpose {
            matrix::COLUMNS
        } else {
            matrix::ROWS
        };
        let mut live = live.to_vec();
        for r in kept {
            if !live.contains(r) {
                live.push(*r);
            }
        }
        self.join(kind, site, &live, &[]);
    }

    /// Where the lane's part of a matrix lies: two numbers next to each other, or one in each of
    /// two rows.
    fn parts(
        &mut self,
        place: &Place,
        j: usize,
        transpose: bool,
        store: bool,
        site: Site,
    ) -> Lowered<(Value, Option<Value>)> {
        let lane = self.field(types::I32, offset_of!(Thread, lane));
        let lane = self.b.ins().uextend(types::I64, lane);
        let offset = if transpose {
            let column = self.b.ins().ushr_imm(lane, 2);
            self.b.ins().ishl_imm(column, 1)
        } else {
            let pair = self.b.ins().band_imm(lane, 3);
            self.b.ins().ishl_imm(pair, 2)
        };
        let bytes = if transpose { 2 } else { 4 };
        let mut row = |i: u32| -> Lowered<Value> {
            let at = self.word(types::I64, 2 * i);
            // A row that is not aligned makes the part so too.
            let rest = self.b.ins().band_imm(at, ROW - 1);
            let wrong = self.b.ins().icmp_imm(IntCC::NotEqual, rest, 0);
            let wrong = self.b.ins().uextend(types::I64, wrong);
            let at = self.b.ins().iadd(at, offset);
            let at = self.b.ins().bor(at, wrong);
            self.permitted(place.space, at, bytes, store, site)
        };
        let j = j as u32;
        Ok(match transpose {
            true => (row(2 * j)?, Some(row(2 * j + 1)?)),
            false => (row(j)?, None),
        })
    }

    /// The row and the first column of what the lane holds, and how many elements that is.
    fn first_element(&mut self, f: &Fragment) -> (Value, Value, u32) {
        let n = f.rows * f.columns / 32;
        let lane = self.field(types::I32, offset_of!(Thread, lane));
        let first = self.b.ins().imul_imm(lane, i64::from(n));
        let first = self.b.ins().uextend(types::I64, first);
        let row = self.b.ins().ushr_imm(first, i64::from(f.columns.ilog2()));
        let column = self.b.ins().band_imm(first, i64::from(f.columns) - 1);
        (row, column, n)
    }

    /// Addresses of the lane's elements, by `unit` elements together.
    fn elements(
        &mut self,
        f: &Fragment,
        place: &Place,
        stride: &Option<Operand>,
        unit: u32,
    ) -> Vec<Value> {
        let (row, column, n) = self.first_element(f);
        let base = self.raw_address(&place.at);
        let default = if f.by_rows { f.columns } else { f.rows };
        let stride = stride.unwrap_or(Operand::Int(i64::from(default)));
        let stride = self.value(&stride, types::I32);
        let stride = self.b.ins().uextend(types::I64, stride);
        let at = |e: &mut Self, index: Value| {
            let bits = e.b.ins().imul_imm(index, i64::from(f.element.bits()));
            let bytes = e.b.ins().ushr_imm(bits, 3);
            e.b.ins().iadd(base, bytes)
        };
        (0..n / unit)
            .map(|i| {
                let column = self.b.ins().iadd_imm(column, i64::from(i * unit));
                let (far, near) = if f.by_rows {
                    (row, column)
                } else {
                    (column, row)
                };
                let far = self.b.ins().imul(far, stride);
                let index = self.b.ins().iadd(far, near);
                at(self, index)
            })
            .collect()
    }

    fn load_fragment(
        &mut self,
        f: &Fragment,
        from: &Place,
        stride: &Option<Operand>,
        to: &[Target],
        site: Site,
    ) -> Lowered<()> {
        let (t, flags) = (register_type(f.element), MemFlags::trusted());
        let in_register = t.bits() / f.element.bits();
        // Elements that are next to each other are loaded together.
        let unit = if f.by_rows { in_register } else { 1 };
        let bytes = (f.element.bits() * unit / 8).max(1);
        let part = Type::int(bytes as u16 * 8).ok_or("no such element")?;
        let mut values = Vec::new();
        for at in self.elements(f, from, stride, unit) {
            let at = self.permitted(from.space, at, bytes, false, site)?;
            let v = self.b.ins().load(part, flags, at, 0);
            values.push(self.cast(v, t, false));
        }
        let mut registers = Vec::new();
        for together in values.chunks((in_register / unit) as usize) {
            let mut all = together[0];
            for (i, v) in together.iter().enumerate().skip(1) {
                let v = self
                    .b
                    .ins()
                    .ishl_imm(*v, i as i64 * i64::from(f.element.bits()));
                all = self.b.ins().bor(all, v);
            }
            registers.push(all);
        }
        let zero = self.int(t, 0);
        for (i, to) in to.iter().enumerate() {
            let v = registers.get(i).copied().unwrap_or(zero);
            self.set(*to, v, false);
        }
        Ok(())
    }

    fn store_fragment(
        &mut self,
        f: &Fragment,
        to: &Place,
        stride: &Option<Operand>,
        from: &[Operand],
        site: Site,
    ) -> Lowered<()> {
        let (t, flags) = (register_type(f.element), MemFlags::trusted());
        let in_register = t.bits() / f.element.bits();
        let unit = if f.by_rows { in_register } else { 1 };
        let bytes = f.element.bits() * unit / 8;
        let part = Type::int(bytes as u16 * 8).ok_or("no such element")?;
        let per = in_register / unit;
        let values: Vec<Value> = from.iter().map(|o| self.value(o, t)).collect();
        for (i, at) in self.elements(f, to, stride, unit).into_iter().enumerate() {
            let v = values[i / per as usize];
            let shift = (i as u32 % per) * f.element.bits();
            let v = self.b.ins().ushr_imm(v, i64::from(shift));
            let v = self.cast(v, part, false);
            let at = self.permitted(to.space, at, bytes, true, site)?;
            self.b.ins().store(flags, v, at, 0);
        }
        Ok(())
    }
}

/// The registers of a matrix of such elements.
fn register_type(e: Element) -> Type {
    if e == Element::F64 {
        types::I64
    } else {
        types::I32
    }
}
