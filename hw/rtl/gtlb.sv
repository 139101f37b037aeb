// GPU TLB: virtual GPU address to bus address (FpgaNIC §2.3.2, Algorithm 1).
//
// The main table has an entry for each group of 2 MiB in a window of MainEntries groups. An entry is large (the whole
// group lies in one aligned piece of the bus), or points to 32 entries of the complementary table, one for each page of
// 64 KiB. An address outside the window, or without an entry, is a fault.
//
// Look-ups are taken one a cycle, are never held back, and are answered three cycles later, in order. A command changes the
// tables in one instant: look-ups taken up to the cycle in which it acts see the tables before it, later ones
// those after it. For that, its effect on the complementary table comes one cycle after that on the main table, as a look-up's
// read does.
//
// Setting the base drops all entries: look-ups fault from that instant on, while the rows are cleared one a cycle.
module gtlb #(
  parameter int unsigned MainEntries = 16384,
  parameter int unsigned CompEntries = 2048
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        lookup_valid_i,
  input  logic [63:0] lookup_va_i,
  output logic        lookup_valid_o,
  // Nothing translates the address; the other answers are 0 then.
  output logic        lookup_fault_o,
  output logic [63:0] lookup_bus_o,
  // Bytes from the address to the end of its entry.
  output logic [31:0] lookup_left_o,

  // A value of register GTLB_COMMAND with what was staged for it.
  input  logic        cmd_valid_i,
  output logic        cmd_ready_o,
  input  logic [31:0] cmd_i,
  input  logic [31:0] cmd_index_i,
  input  logic [63:0] cmd_va_i,
  input  logic [63:0] cmd_pa_i,
  // A new base of the window, taken before a command of the same cycle.
  input  logic        base_valid_i,
  output logic        base_ready_o,
  input  logic [63:0] base_i,
  // One pulse for each command and base; error: it was refused and changed nothing.
  output logic        done_o,
  output logic        error_o
);
  localparam int unsigned PageShift  = ringbell_abi_pkg::PAGE_SHIFT;
  localparam int unsigned LargeShift = ringbell_abi_pkg::LARGE_PAGE_SHIFT;
  localparam int unsigned GroupW     = 64 - LargeShift;
  localparam int unsigned FrameW     = 64 - PageShift;
  localparam int unsigned PageW      = LargeShift - PageShift;
  localparam int unsigned GroupPages = 1 << PageW;
  localparam int unsigned Rows       = CompEntries / GroupPages;
  localparam int unsigned SlotW      = $clog2(MainEntries);
  localparam int unsigned RowW       = $clog2(Rows);

  localparam logic [1:0] KindNone  = 2'd0;
  localparam logic [1:0] KindLarge = 2'd1;
  localparam logic [1:0] KindPages = 2'd2;
  localparam int unsigned MainW = 2 + GroupW;

  // The tables. A row of `pages_q` says which pages of a complementary group are written, and clears in one cycle.
  logic [MainW-1:0]      main_q  [MainEntries];
  logic [FrameW-1:0]     comp_q  [CompEntries];
  logic [GroupPages-1:0] pages_q [Rows];
  // The slot whose main entry points to the group, and whether there is one.
  logic [SlotW:0]        owner_q [Rows];

  logic              window_q;  // a base was set
  logic [GroupW-1:0] base_q;    // its first group
  logic              sweep_q;   // rows are being cleared
  logic [SlotW-1:0]  sweep_at_q;

  function automatic logic in_window(input logic [GroupW-1:0] group, input logic [GroupW-1:0] base);
    in_window = {1'b0, group} - {1'b0, base} < (GroupW+1)'(MainEntries);
  endfunction

  // ---------------------------------------------------------------- Commands
  localparam logic [2:0] Idle  = 3'd0;
  localparam logic [2:0] Read  = 3'd1;  // main entry and owner are being read
  localparam logic [2:0] Act   = 3'd2;  // the main table changes
  localparam logic [2:0] Apply = 3'd3;  // the complementary table changes
  localparam logic [2:0] Claim = 3'd4;  // a pointer becomes owner of its group

  logic [2:0]        state_q;
  logic              is_base_q;
  logic [31:0]       cmd_q, index_q;
  logic [63:0]       va_q, pa_q;
  logic [MainW-1:0]  old_q;
  logic [SlotW:0]    owner_rd_q;

  wire [GroupW-1:0] cmd_group = (cmd_q == ringbell_abi_pkg::GTLB_INVALIDATE) ?
                                base_q + GroupW'(index_q) : va_q[63:LargeShift];
  wire [SlotW-1:0]  cmd_slot  = cmd_group[SlotW-1:0];
  wire [GroupW-1:0] at        = cmd_group - base_q;
  wire              at_index  = window_q && in_window(cmd_group, base_q) && at == GroupW'(index_q) &&
                                index_q < MainEntries;
  wire              owned     = owner_rd_q[SlotW];
  wire              own       = owned && owner_rd_q[SlotW-1:0] == cmd_slot;
  wire              first_ok  = pa_q[31:0] < CompEntries && pa_q[PageW-1:0] == '0;

  logic refused;
  always_comb begin
    if (is_base_q) begin
      refused = va_q[LargeShift-1:0] != '0;
    end else begin
      case (cmd_q)
        ringbell_abi_pkg::GTLB_WRITE_LARGE:   refused = !at_index || pa_q[LargeShift-1:0] != '0;
        ringbell_abi_pkg::GTLB_WRITE_PAGE:    refused = index_q >= CompEntries || pa_q[PageShift-1:0] != '0;
        ringbell_abi_pkg::GTLB_WRITE_POINTER: refused = !at_index || !first_ok || (owned && !own);
        ringbell_abi_pkg::GTLB_INVALIDATE:    refused = !at_index;
        default:                              refused = 1'b1;
      endcase
    end
  end

  wire is_page    = !is_base_q && cmd_q == ringbell_abi_pkg::GTLB_WRITE_PAGE;
  wire is_pointer = !is_base_q && cmd_q == ringbell_abi_pkg::GTLB_WRITE_POINTER;
  wire is_large   = !is_base_q && cmd_q == ringbell_abi_pkg::GTLB_WRITE_LARGE;
  // A pointer that is there already changes nothing: replacing it would drop its pages.
  wire acts       = state_q == Act && !refused && !(is_pointer && own);
  wire sets_base  = acts && is_base_q;
  wire sets_main  = acts && !is_base_q && !is_page;

  logic [MainW-1:0] new_entry;
  always_comb begin
    new_entry = '0;
    if (is_large)   new_entry = {KindLarge, pa_q[63:LargeShift]};
    if (is_pointer) new_entry = {KindPages, GroupW'(pa_q[PageW+:RowW])};
  end

  // What the complementary table does one cycle after the main table.
  logic            drop_q, page_q, claim_q;
  logic [RowW-1:0] drop_row_q;

  wire unused = ^old_q[GroupW-1:RowW];

  assign base_ready_o = state_q == Idle && !sweep_q;
  assign cmd_ready_o  = base_ready_o && !base_valid_i;
  assign done_o       = state_q == Act;
  assign error_o      = state_q == Act && refused;

  always_ff @(posedge clk_i) begin
    drop_q  <= 1'b0;
    page_q  <= 1'b0;
    case (state_q)
      Idle: if (base_ready_o && (base_valid_i || cmd_valid_i)) begin
        state_q   <= Read;
        is_base_q <= base_valid_i;
        cmd_q     <= cmd_i;
        index_q   <= cmd_index_i;
        va_q      <= base_valid_i ? base_i : cmd_va_i;
        pa_q      <= cmd_pa_i;
      end
      Read: state_q <= Act;
      Act: begin
        state_q    <= Apply;
        drop_q     <= sets_main && old_q[MainW-1-:2] == KindPages;
        drop_row_q <= old_q[RowW-1:0];
        page_q     <= acts && is_page;
        claim_q    <= acts && is_pointer;
      end
      Apply: state_q <= claim_q ? Claim : Idle;
      default: state_q <= Idle;
    endcase
    if (sets_base) begin
      window_q   <= 1'b1;
      base_q     <= va_q[63:LargeShift];
      sweep_q    <= 1'b1;
      sweep_at_q <= '0;
    end else if (sweep_q) begin
      sweep_at_q <= sweep_at_q + 1'b1;
      sweep_q    <= sweep_at_q != SlotW'(MainEntries - 1);
    end
    if (!rst_ni) begin
      state_q  <= Idle;
      window_q <= 1'b0;
      sweep_q  <= 1'b0;
      drop_q   <= 1'b0;
      page_q   <= 1'b0;
    end
  end

  // ---------------------------------------------------------------- Main table
  wire [SlotW-1:0] main_at = sweep_q ? sweep_at_q : cmd_slot;
  always_ff @(posedge clk_i) begin
    if (sweep_q || sets_main) main_q[main_at] <= sweep_q ? '0 : new_entry;
    old_q <= main_q[main_at];
  end

  // ---------------------------------------------------------------- Complementary table
  // The row that changes, or the one whose owner is asked for.
  logic [RowW-1:0] row;
  always_comb begin
    row = pa_q[PageW+:RowW];
    if (page_q) row = index_q[PageW+:RowW];
    if (drop_q) row = drop_row_q;
    if (sweep_q) row = sweep_at_q[RowW-1:0];
  end
  wire [GroupPages-1:0] one_page = GroupPages'(1) << index_q[PageW-1:0];

  always_ff @(posedge clk_i) begin
    if (page_q) comp_q[index_q[PageW+RowW-1:0]] <= pa_q[63:PageShift];
    if (sweep_q || drop_q) pages_q[row] <= '0;
    else if (page_q)       pages_q[row] <= pages_q[row] | one_page;
    if (sweep_q || drop_q)       owner_q[row] <= '0;
    else if (state_q == Claim)   owner_q[row] <= {1'b1, cmd_slot};
    owner_rd_q <= owner_q[row];
  end

  // ---------------------------------------------------------------- Look-ups
  logic                  valid1_q, valid2_q, hit1_q, hit2_q, large2_q, page2_q;
  logic [LargeShift-1:0] offset1_q, offset2_q;
  logic [MainW-1:0]      entry_q;
  logic [GroupW-1:0]     target2_q;
  logic [FrameW-1:0]     frame_q;

  wire [GroupW-1:0] group0 = lookup_va_i[63:LargeShift];
  wire [1:0]        kind1  = entry_q[MainW-1-:2];
  wire [RowW-1:0]   row1   = entry_q[RowW-1:0];
  wire [PageW-1:0]  page1  = offset1_q[LargeShift-1:PageShift];
  wire [GroupPages-1:0] written1 = pages_q[row1];

  always_ff @(posedge clk_i) begin
    entry_q   <= main_q[group0[SlotW-1:0]];
    hit1_q    <= window_q && !sweep_q && in_window(group0, base_q);
    offset1_q <= lookup_va_i[LargeShift-1:0];

    frame_q   <= comp_q[{row1, page1}];
    hit2_q    <= hit1_q;
    large2_q  <= kind1 == KindLarge;
    page2_q   <= kind1 == KindPages && written1[page1];
    target2_q <= entry_q[GroupW-1:0];
    offset2_q <= offset1_q;

    lookup_fault_o <= 1'b1;
    lookup_bus_o   <= '0;
    lookup_left_o  <= '0;
    if (hit2_q && large2_q) begin
      lookup_fault_o <= 1'b0;
      lookup_bus_o   <= {target2_q, offset2_q};
      lookup_left_o  <= (32'd1 << LargeShift) - 32'(offset2_q);
    end else if (hit2_q && page2_q) begin
      lookup_fault_o <= 1'b0;
      lookup_bus_o   <= {frame_q, offset2_q[PageShift-1:0]};
      lookup_left_o  <= (32'd1 << PageShift) - 32'(offset2_q[PageShift-1:0]);
    end

    valid1_q       <= lookup_valid_i && rst_ni;
    valid2_q       <= valid1_q && rst_ni;
    lookup_valid_o <= valid2_q && rst_ni;
  end

`ifdef FORMAL
  `include "gtlb_props.svh"
`endif
endmodule
