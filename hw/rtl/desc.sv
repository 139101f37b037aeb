// Descriptors: fetches entries of the send queues when their doorbells ring, dispatches those that are whole, and writes completion
// lines (docs/registers.md, nic-abi `queue`).
//
// An entry is whole when all eight words carry the lap bit of its ticket; only then it is consumed, in the order of tickets, and
// only when the slot's last operation has retired: its completion line is free. A consumed entry holds a permit, which is its slot; it
// retires once. A completion without a permit writes nothing and is counted as a stray.
// A doorbell may come before the entry: while it names tickets that have not come, the slot is looked at again every Retry cycles.
//
// Entries leave as eight words with bit 63 restored. A malformed one leaves too, marked with the word at fault. Queues are set up
// by the control software; one set up anew starts without permits.
module desc #(
  parameter int unsigned Queues    = 16,
  // log2 of the most slots of a queue.
  parameter int unsigned DepthLog2 = 8,
  // Power of two.
  parameter int unsigned Retry     = 256
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // Sets up a queue: bus addresses of entries and completion lines, log2 of its slots, first ticket.
  input  logic         setup_valid_i,
  output logic         setup_ready_o,
  input  logic [8:0]   setup_queue_i,
  input  logic [63:0]  setup_sq_i,
  input  logic [63:0]  setup_cq_i,
  input  logic [3:0]   setup_depth_i,
  input  logic [31:0]  setup_ticket_i,

  input  logic         bell_valid_i,
  output logic         bell_ready_o,
  input  logic [8:0]   bell_queue_i,
  input  logic [31:0]  bell_value_i,

  // Reads an entry; one at a time.
  output logic         fetch_valid_o,
  input  logic         fetch_ready_i,
  output logic [63:0]  fetch_addr_o,
  input  logic         entry_valid_i,
  input  logic [511:0] entry_i,

  output logic         op_valid_o,
  input  logic         op_ready_i,
  output logic [8:0]   op_queue_o,
  output logic [31:0]  op_ticket_o,
  output logic [511:0] op_entry_o,
  output logic         op_bad_o,
  output logic [2:0]   op_word_o,

  // An operation has ended.
  input  logic         done_valid_i,
  output logic         done_ready_o,
  input  logic [8:0]   done_queue_i,
  input  logic [31:0]  done_ticket_i,
  input  logic [7:0]   done_status_i,
  input  logic [63:0]  done_bytes_i,
  input  logic [63:0]  done_detail_i,
  output logic         stray_o,

  // Words 0 to 3 of a completion line, to be written at once or word 0 last.
  output logic         line_valid_o,
  input  logic         line_ready_i,
  output logic [63:0]  line_addr_o,
  output logic [255:0] line_o
);
  localparam int unsigned QueueW  = $clog2(Queues);
  localparam int unsigned PermitW = QueueW + DepthLog2;

  typedef logic [QueueW-1:0] queue_t;

  // ---------------------------------------------------------------- Queues
  logic [63:0]       sq_q    [Queues];
  logic [63:0]       cq_q    [Queues];
  logic [3:0]        depth_q [Queues];
  logic [31:0]       next_q  [Queues];
  logic [31:0]       rung_q  [Queues];
  logic [Queues-1:0] set_q, ring_q, wait_q;  // set up; has rung since the last look; names tickets that have not come

  // ---------------------------------------------------------------- Permits, by queue and slot
  // One is out when its two bits differ: the one side writes `issued_q`, the other `retired_q`.
  logic         issued_q  [1 << PermitW];
  logic         retired_q [1 << PermitW];
  logic [103:0] permit_q  [1 << PermitW];  // ticket, opcode, wr_id

  function automatic logic [DepthLog2-1:0] slot_of(input logic [DepthLog2-1:0] ticket, input logic [3:0] depth);
    slot_of = ticket & DepthLog2'((32'd1 << depth) - 32'd1);
  endfunction

  // ---------------------------------------------------------------- Fetch
  localparam logic [2:0] Pick  = 3'd0;
  localparam logic [2:0] Look  = 3'd1;  // the queue's state is being read
  localparam logic [2:0] Ask   = 3'd2;
  localparam logic [2:0] Wait  = 3'd3;
  localparam logic [2:0] Check = 3'd4;
  localparam logic [2:0] Offer = 3'd5;
  localparam logic [2:0] Sweep = 3'd6;  // the permits of a new queue are cleared

  logic [2:0]   state_q;
  queue_t       at_q;  // the queue that is served
  logic [31:0]  ticket_q, rung_at_q;
  logic [3:0]   depth_at_q;
  logic [63:0]  sq_at_q;
  logic [511:0] entry_q;
  logic [$clog2(Retry)-1:0] retry_q;
  logic [Queues-1:0]        turn_q;  // queues whose turn has not been since all had one

  // The next queue of those with work: one whose turn it is, else any.
  wire [Queues-1:0] work  = ring_q & set_q;
  wire [Queues-1:0] first = (work & turn_q) != '0 ? work & turn_q : work;
  queue_t pick;
  always_comb begin
    pick = '0;
    for (int unsigned i = 0; i < Queues; i++) if (first[Queues-1-i]) pick = queue_t'(Queues - 1 - i);
  end

  wire [DepthLog2-1:0] slot   = slot_of(ticket_q[DepthLog2-1:0], depth_at_q);
  wire [PermitW-1:0]   permit = {at_q, slot};
  wire                 busy   = issued_q[permit] != retired_q[permit];
  wire                 lap    = !ticket_q[5'(depth_at_q)];
  logic [7:0]        laps;
  logic [511:0]      whole;
  for (genvar i = 0; i < 8; i++) begin : gen_word
    assign laps[i] = entry_q[64*i + 63];
    // Word 7 keeps the saved bits of the others; its own is the lap's.
    assign whole[64*i +: 64] = {i < 7 && entry_q[448 + i], entry_q[64*i +: 63]};
  end
  wire is_whole = laps == {8{lap}};

  // ---------------------------------------------------------------- Decoding
  wire [63:0] word0      = whole[63:0];
  wire [63:0] word7      = whole[511:448];
  wire [7:0]  opcode     = word0[ringbell_abi_pkg::WQE_OPCODE_SHIFT +: 8];
  wire [7:0]  flags      = word0[ringbell_abi_pkg::WQE_FLAGS_SHIFT +: 8];
  wire [7:0]  inline_len = word0[ringbell_abi_pkg::WQE_INLINE_LEN_SHIFT +: 8];
  wire        is_known   = opcode >= ringbell_abi_pkg::OP_NOP && opcode <= ringbell_abi_pkg::OP_COMPARE_SWAP;
  wire        is_inline  = (flags & ringbell_abi_pkg::FLAG_INLINE) != '0;
  localparam logic [7:0] OneSided =
    ringbell_abi_pkg::FLAG_SYMMETRIC | ringbell_abi_pkg::FLAG_SIGNAL | ringbell_abi_pkg::FLAG_SIGNAL_SET;

  logic [7:0] allowed;
  logic       inline_ok;
  always_comb begin
    allowed   = ~OneSided;
    inline_ok = inline_len == '0 && !is_inline;
    case (opcode)
      ringbell_abi_pkg::OP_PUT: begin
        allowed   = OneSided | ringbell_abi_pkg::FLAG_INLINE;
        inline_ok = is_inline ? 32'(inline_len) <= ringbell_abi_pkg::PUT_INLINE_MAX : inline_len == '0;
      end
      ringbell_abi_pkg::OP_GET, ringbell_abi_pkg::OP_FETCH_ADD, ringbell_abi_pkg::OP_COMPARE_SWAP:
        allowed = ringbell_abi_pkg::FLAG_SYMMETRIC;
      ringbell_abi_pkg::OP_SEND:
        inline_ok = is_inline ? 32'(inline_len) <= ringbell_abi_pkg::INLINE_MAX : inline_len == '0;
      default: ;
    endcase
  end
  wire set_alone = (flags & (ringbell_abi_pkg::FLAG_SIGNAL | ringbell_abi_pkg::FLAG_SIGNAL_SET)) == ringbell_abi_pkg::FLAG_SIGNAL_SET;
  // Bits of words 0 and 7 that are no field.
  localparam logic [63:0] Reserved0 = ~(64'hff << ringbell_abi_pkg::WQE_OPCODE_SHIFT | 64'hff << ringbell_abi_pkg::WQE_FLAGS_SHIFT |
    64'hff << ringbell_abi_pkg::WQE_INLINE_LEN_SHIFT |
    ((64'd1 << ringbell_abi_pkg::WQE_SESSION_BITS) - 64'd1) << ringbell_abi_pkg::WQE_SESSION_SHIFT);
  localparam logic [63:0] Reserved7 = ~(((64'd1 << ringbell_abi_pkg::WQE_SAVED_BITS) - 64'd1) << ringbell_abi_pkg::WQE_SAVED_SHIFT |
    ((64'd1 << ringbell_abi_pkg::WQE_TIMEOUT_US_BITS) - 64'd1) << ringbell_abi_pkg::WQE_TIMEOUT_US_SHIFT);
  wire bad0 = !is_known || (flags & ~allowed) != '0 || set_alone || !inline_ok || (word0 & Reserved0) != '0;
  wire bad7 = (word7 & Reserved7) != '0;

  assign fetch_valid_o = state_q == Ask && !busy;
  assign fetch_addr_o  = sq_at_q + 64'({slot, 6'd0});
  assign op_valid_o    = state_q == Offer;
  assign op_queue_o    = 9'(at_q);
  assign op_ticket_o   = ticket_q;
  assign op_entry_o    = whole;
  assign op_bad_o      = bad0 || bad7;
  assign op_word_o     = bad0 ? 3'd0 : 3'd7;
  wire   consumes      = op_valid_o && op_ready_i;

  // ---------------------------------------------------------------- Completions
  logic         done_q;  // a completion's permit is being read
  logic [31:0]  done_ticket_q;
  logic [7:0]   done_status_q;
  logic [63:0]  done_bytes_q, done_detail_q, cq_at_q;
  logic [103:0] permit_rd_q;
  logic         held_q;
  queue_t       done_queue_q;
  logic [DepthLog2-1:0] done_slot_q;

  wire                 done_known  = 32'(done_queue_i) < Queues && set_q[queue_t'(done_queue_i)];
  wire [DepthLog2-1:0] done_slot   = slot_of(done_ticket_i[DepthLog2-1:0], depth_q[queue_t'(done_queue_i)]);
  wire [PermitW-1:0]   done_permit = {queue_t'(done_queue_i), done_slot};
  wire                 takes       = done_valid_i && done_ready_o;
  wire                 is_own      = held_q && permit_rd_q[103:72] == done_ticket_q;
  wire [31:0]          done_plus_1 = done_ticket_q + 32'd1;

  assign done_ready_o = !done_q && state_q != Sweep;
  assign stray_o      = done_q && !is_own;
  assign line_valid_o = done_q && is_own;
  assign line_addr_o  = cq_at_q + 64'({done_slot_q, 6'd0});
  assign line_o       = {done_detail_q, permit_rd_q[63:0], done_bytes_q,
                         done_plus_1, 15'd0, done_detail_q != '0, permit_rd_q[71:64], done_status_q};
  wire   retires      = line_valid_o && line_ready_i;
  wire [PermitW-1:0] retired = {done_queue_q, done_slot_q};

  // ---------------------------------------------------------------- Setup, and the state of queues
  wire setup  = setup_valid_i && setup_ready_o;
  wire legal  = 32'(setup_queue_i) < Queues && 32'(setup_depth_i) <= DepthLog2;
  queue_t setup_at;
  assign setup_at = queue_t'(setup_queue_i);
  wire bell   = bell_valid_i && 32'(bell_queue_i) < Queues && set_q[queue_t'(bell_queue_i)];
  assign setup_ready_o = state_q == Pick && !done_q && !takes;
  assign bell_ready_o  = !setup && state_q != Sweep;

  // What the doorbell names beyond the next ticket; 0 names a ticket before it.
  wire [31:0] ahead  = rung_at_q - ticket_q - 32'd1;
  wire        awaits = ahead < (32'd1 << depth_at_q);

  logic [DepthLog2-1:0] sweep_q;
  wire [PermitW-1:0]    swept = {at_q, sweep_q};
  always_ff @(posedge clk_i) begin
    if (state_q == Sweep || consumes) issued_q[state_q == Sweep ? swept : permit] <= state_q != Sweep && !retired_q[permit];
    if (state_q == Sweep || retires) retired_q[state_q == Sweep ? swept : retired] <= state_q != Sweep && issued_q[retired];
    if (consumes) permit_q[permit] <= {ticket_q, opcode, whole[447:384]};
  end

  always_ff @(posedge clk_i) begin
    retry_q <= retry_q + 1'b1;
    sweep_q <= sweep_q + 1'b1;
    if (retry_q == '0) ring_q <= ring_q | wait_q;

    case (state_q)
      Pick: if (work != '0 && !setup_valid_i) begin
        at_q    <= pick;
        turn_q  <= (work & turn_q) != '0 ? turn_q & ~(Queues'(1) << pick) : ~(Queues'(1) << pick);
        state_q <= Look;
      end
      Look: begin
        ticket_q   <= next_q[at_q];
        rung_at_q  <= rung_q[at_q];
        depth_at_q <= depth_q[at_q];
        sq_at_q    <= sq_q[at_q];
        // Rings from now on are looked at once more.
        ring_q[at_q] <= 1'b0;
        wait_q[at_q] <= 1'b0;
        state_q      <= Ask;
      end
      Ask: if (busy) begin
        // The ring is full of operations that have not retired.
        wait_q[at_q] <= 1'b1;
        state_q      <= Pick;
      end else if (fetch_ready_i) state_q <= Wait;
      Wait: if (entry_valid_i) begin
        entry_q <= entry_i;
        state_q <= Check;
      end
      Check: begin
        state_q <= is_whole ? Offer : Pick;
        if (!is_whole && awaits) wait_q[at_q] <= 1'b1;
      end
      Sweep: if (sweep_q == '1) begin
        set_q[at_q] <= 1'b1;
        state_q     <= Pick;
      end
      default: if (op_ready_i) begin
        next_q[at_q] <= ticket_q + 32'd1;
        // More may lie behind it.
        ring_q[at_q] <= 1'b1;
        state_q      <= Pick;
      end
    endcase

    if (takes) begin
      done_q        <= 1'b1;
      done_queue_q  <= queue_t'(done_queue_i);
      done_ticket_q <= done_ticket_i;
      done_slot_q   <= done_slot;
      done_status_q <= done_status_i;
      done_bytes_q  <= done_bytes_i;
      done_detail_q <= done_detail_i;
      cq_at_q       <= cq_q[queue_t'(done_queue_i)];
      permit_rd_q   <= permit_q[done_permit];
      held_q        <= done_known && issued_q[done_permit] != retired_q[done_permit];
    end
    if (stray_o || retires) done_q <= 1'b0;
    // The slot for which its queue may have waited.
    if (retires && wait_q[done_queue_q]) ring_q[done_queue_q] <= 1'b1;

    if (bell && bell_ready_o) begin
      rung_q[queue_t'(bell_queue_i)] <= bell_value_i;
      ring_q[queue_t'(bell_queue_i)] <= 1'b1;
    end
    if (setup && legal) begin
      sq_q[setup_at]    <= setup_sq_i;
      cq_q[setup_at]    <= setup_cq_i;
      depth_q[setup_at] <= setup_depth_i;
      next_q[setup_at]  <= setup_ticket_i;
      rung_q[setup_at]  <= setup_ticket_i;
      set_q[setup_at]   <= 1'b0;
      ring_q[setup_at]  <= 1'b0;
      wait_q[setup_at]  <= 1'b0;
      at_q              <= setup_at;
      sweep_q           <= '0;
      state_q           <= Sweep;
    end
    if (!rst_ni) begin
      state_q <= Pick;
      done_q  <= 1'b0;
      set_q   <= '0;
      ring_q  <= '0;
      wait_q  <= '0;
      turn_q  <= '0;
      retry_q <= '0;
    end
  end

`ifdef FORMAL
  `include "desc_props.svh"
`endif
endmodule
