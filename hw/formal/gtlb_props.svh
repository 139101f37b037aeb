// Proof of gtlb, included at its end: every look-up returns the programmed address or a fault, whatever commands come
// meanwhile, at full size and without a bound on time.
//
// One slot of the main table and one entry of the complementary table are chosen freely and stay (anyconst), so what is
// proved for them holds for all. Beside the tables runs a model of these two alone, written from the commands' definition
// (gtlb/src/gtlb.rs); look-ups that touch them are compared with it. Invariants tie the tables to the model.
(* anyconst *) logic [SlotW-1:0]      f_slot;
(* anyconst *) logic [RowW+PageW-1:0] f_entry;
wire [RowW-1:0]  f_row  = f_entry[PageW+:RowW];
wire [PageW-1:0] f_page = f_entry[PageW-1:0];

logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

// ---------------------------------------------------------------- Model
logic              g_window = 1'b0;
logic [GroupW-1:0] g_base;
logic [1:0]        g_kind = KindNone;   // what the slot holds
logic [GroupW-1:0] g_group;             // for which group
logic [GroupW-1:0] g_target;            // where: large frame, or row
logic              g_written = 1'b0;    // whether the complementary entry holds a page
logic [FrameW-1:0] g_frame;
logic              g_owned = 1'b0;      // whether a main entry points to its row
logic [SlotW-1:0]  g_owner;

wire f_act = state_q == Act;
// 64-bit arithmetic, as in Rust.
wire [63:0] f_va_group = va_q >> LargeShift;
wire [63:0] f_group    = (cmd_q == 4) ? 64'(g_base) + 64'(index_q) : f_va_group;
wire f_inside = g_window && f_group >= 64'(g_base) && f_group - 64'(g_base) < 64'(MainEntries) &&
                f_group - 64'(g_base) == 64'(index_q) && f_group < (64'd1 << GroupW);
wire f_first  = pa_q[31:0] < CompEntries && pa_q[31:0] % GroupPages == 0;
wire f_mine   = pa_q[31:0] / GroupPages == 32'(f_row);
wire f_taken  = f_mine && g_owned && g_owner != f_group[SlotW-1:0];
wire f_again  = f_mine && g_owned && g_owner == f_group[SlotW-1:0];
wire f_base   = f_act && is_base_q && va_q % (64'd1 << LargeShift) == 0;
wire f_large  = f_act && !is_base_q && cmd_q == 1 && f_inside && pa_q % (64'd1 << LargeShift) == 0;
wire f_write  = f_act && !is_base_q && cmd_q == 2 && index_q < CompEntries && pa_q % (64'd1 << PageShift) == 0;
// Whether another row is taken is known in the proof that chooses that row; here the block decides.
wire f_point  = f_act && !is_base_q && cmd_q == 3 && f_inside && f_first &&
                (f_mine ? !f_taken && !f_again : acts);
wire f_drop   = f_act && !is_base_q && cmd_q == 4 && f_inside;
wire f_here   = f_group[SlotW-1:0] == f_slot;

always_ff @(posedge clk_i) begin
  if (f_large || f_point || f_drop) begin
    if (f_here) begin
      g_kind   <= f_large ? KindLarge : f_point ? KindPages : KindNone;
      g_group  <= f_group[GroupW-1:0];
      g_target <= f_large ? GroupW'(pa_q >> LargeShift) : GroupW'(pa_q[31:0] / GroupPages);
    end
    // What the slot held before is dropped, and with it the pages of its row.
    if (g_owned && g_owner == f_group[SlotW-1:0]) begin
      g_owned   <= 1'b0;
      g_written <= 1'b0;
    end
    if (f_point && f_mine) begin
      g_owned <= 1'b1;
      g_owner <= f_group[SlotW-1:0];
    end
  end
  if (f_write && index_q == 32'(f_entry)) begin
    g_written <= 1'b1;
    g_frame   <= FrameW'(pa_q >> PageShift);
  end
  if (f_base) begin
    g_window  <= 1'b1;
    g_base    <= GroupW'(va_q >> LargeShift);
    g_kind    <= KindNone;
    g_written <= 1'b0;
    g_owned   <= 1'b0;
  end
  if (!rst_ni) begin
    g_window <= 1'b0;
    g_kind   <= KindNone;
  end
end

// ---------------------------------------------------------------- Look-ups against the model
logic        e_valid [3];
logic        e_check [3];
logic        e_fault [3];
logic [63:0] e_bus   [3];
logic [31:0] e_left  [3];
initial for (int i = 0; i < 3; i++) e_valid[i] = 1'b0;
wire [GroupW-1:0] f_look = lookup_va_i[63:LargeShift];
wire f_known = g_window && g_kind != KindNone && g_group == f_look;
wire f_entry_hit = g_target == GroupW'(f_row) && lookup_va_i[LargeShift-1:PageShift] == f_page;
always_ff @(posedge clk_i) begin
  e_valid[0] <= lookup_valid_i && rst_ni;
  e_check[0] <= f_look[SlotW-1:0] == f_slot && (!f_known || g_kind == KindLarge || f_entry_hit);
  e_fault[0] <= !f_known || (g_kind == KindPages && !g_written);
  e_bus[0]   <= g_kind == KindLarge ? {g_target, lookup_va_i[LargeShift-1:0]} : {g_frame, lookup_va_i[PageShift-1:0]};
  e_left[0]  <= g_kind == KindLarge ? 32'h20_0000 - lookup_va_i[LargeShift-1:0] : 32'h1_0000 - lookup_va_i[PageShift-1:0];
  for (int i = 1; i < 3; i++) begin
    e_valid[i] <= e_valid[i-1] && rst_ni;
    e_check[i] <= e_check[i-1];
    e_fault[i] <= e_fault[i-1];
    e_bus[i]   <= e_bus[i-1];
    e_left[i]  <= e_left[i-1];
  end
end
always_comb if (f_started) begin
  assert (lookup_valid_o == e_valid[2]);
  if (lookup_valid_o && e_check[2]) begin
    assert (lookup_fault_o == e_fault[2]);
    if (!lookup_fault_o) assert (lookup_bus_o == e_bus[2] && lookup_left_o == e_left[2]);
  end
  if (lookup_valid_o && lookup_fault_o) assert (lookup_bus_o == '0 && lookup_left_o == '0);
end

// A command is refused exactly when its definition says so.
always_comb if (f_started && f_act) begin
  assert (done_o);
  if (is_base_q) assert (error_o == !f_base);
  else if (cmd_q == 1) assert (error_o == !f_large);
  else if (cmd_q == 2) assert (error_o == !f_write);
  else if (cmd_q == 4) assert (error_o == !f_drop);
  else if (cmd_q == 3) begin
    if (f_mine || !f_inside || !f_first) assert (error_o == !(f_inside && f_first && !f_taken));
  end else assert (error_o);
end

// ---------------------------------------------------------------- Invariants
wire f_settled = window_q && !sweep_q;
wire f_dropping = drop_q && drop_row_q == f_row;
wire f_paging = page_q && index_q[PageW+RowW-1:0] == f_entry;
wire f_claiming = ((state_q == Apply && claim_q) || state_q == Claim) && pa_q[PageW+:RowW] == f_row;
// The tables as they are once the effects under way have come.
wire f_written = !f_dropping && (f_paging || pages_q[f_row][f_page]);
wire [FrameW-1:0] f_frame = f_paging ? pa_q[63:PageShift] : comp_q[f_entry];
wire [SlotW:0] f_owner = f_claiming ? {1'b1, cmd_slot} : f_dropping ? '0 : owner_q[f_row];

always_comb if (f_started) begin
  assert (g_window == window_q);
  assert (state_q <= Claim);
  if (drop_q || page_q) assert (state_q == Apply);
  assert (!(drop_q && page_q));
  if (window_q) assert (g_base == base_q);
  if (sweep_q) begin
    assert (window_q && (state_q == Apply || state_q == Idle));
    if (state_q == Apply) assert (!drop_q && !page_q && !claim_q);
    assert (g_kind == KindNone && !g_written && !g_owned);
    if (f_slot < sweep_at_q) assert (main_q[f_slot] == '0);
    if (f_row < sweep_at_q) assert (pages_q[f_row] == '0 && owner_q[f_row] == '0);
  end
  if (f_settled) begin
    assert (main_q[f_slot][MainW-1-:2] == g_kind && g_kind <= KindPages);
    if (g_kind != KindNone) begin
      assert (main_q[f_slot][GroupW-1:0] == g_target);
      assert (g_group[SlotW-1:0] == f_slot && in_window(g_group, base_q));
    end
    if (g_kind == KindPages) assert (g_target < GroupW'(Rows));
    assert (f_written == g_written);
    if (g_written) assert (f_frame == g_frame);
    assert (f_owner[SlotW] == g_owned);
    if (g_owned) assert (f_owner[SlotW-1:0] == g_owner);
    // A row has an owner exactly when the owner's main entry points to it.
    assert ((g_kind == KindPages && g_target == GroupW'(f_row)) == (g_owned && g_owner == f_slot));
    // The same for the slot of the command, whose proof is the one that chooses that slot. It is used before the
    // command acts only, so the argument is an induction over time and no circle.
    if (f_act && !is_base_q && !is_page) begin
      assume ((old_q[MainW-1-:2] == KindPages && old_q[GroupW-1:0] == GroupW'(f_row)) ==
              (g_owned && g_owner == cmd_slot));
      if (old_q[MainW-1-:2] == KindPages) assume (old_q[GroupW-1:0] < GroupW'(Rows));
    end
  end
end
