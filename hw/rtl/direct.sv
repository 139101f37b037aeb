// Direct model (FpgaNIC §A.1): sends and receives of established connections, between GPU memory and the network transport's streams
// of Table 4.
//
// Each connection has Slots operations in each direction, which run in order. A send goes in chunks: a chunk leaves when the transport
// has given credit for its bytes, as `tx_meta` and then beats of `tx_data`. A receive is announced to the transport (`want`), which then
// sends segments: `rx_meta`, and beats of `rx_data`. No segment is longer than what is left of the receive that it meets; one that is,
// or that meets none, is dropped and counted. A receive ends when it is full, or with `some` at the end of its first segment.
//
// Every operation ends with one `done`: with its bytes, or as refused (no such connection, no slot, no bytes), or as flushed. After a
// fault nothing ends on that side of the connection until the control software flushes it; a flush waits for what is under way.
// Who takes `done`, `want` and `fault` must not wait for this block. A connection is flushed on both sides before it is closed.
module direct #(
  parameter int unsigned Conns = 64,
  parameter int unsigned Slots = 4,
  // Most bytes of a chunk.
  parameter int unsigned Chunk = 65536
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // Opens or closes a connection, or flushes one side of it. Taken when it has been done.
  input  logic         ctl_valid_i,
  output logic         ctl_ready_o,
  input  logic [15:0]  ctl_conn_i,
  input  logic [1:0]   ctl_what_i,

  input  logic         op_valid_i,
  output logic         op_ready_o,
  input  logic         op_send_i,
  input  logic [15:0]  op_conn_i,
  input  logic [63:0]  op_va_i,
  input  logic [31:0]  op_len_i,
  input  logic         op_some_i,
  input  logic [15:0]  op_tag_i,

  output logic         done_valid_o,
  input  logic         done_ready_i,
  output logic         done_send_o,
  output logic [15:0]  done_tag_o,
  output logic [31:0]  done_bytes_o,
  output logic         done_refused_o,
  output logic         done_flushed_o,

  // An address has faulted, or a segment was cut short.
  output logic         fault_valid_o,
  input  logic         fault_ready_i,
  output logic         fault_send_o,
  output logic [15:0]  fault_conn_o,
  output logic [63:0]  fault_va_o,

  // To the transport.
  input  logic         credit_valid_i,
  output logic         credit_ready_o,
  input  logic [15:0]  credit_conn_i,
  input  logic [31:0]  credit_i,
  output logic         tx_meta_valid_o,
  input  logic         tx_meta_ready_i,
  output logic [15:0]  tx_meta_conn_o,
  output logic [31:0]  tx_meta_len_o,
  output logic         tx_valid_o,
  input  logic         tx_ready_i,
  output logic [511:0] tx_data_o,
  output logic [63:0]  tx_keep_o,
  output logic         tx_last_o,
  output logic         tx_cut_o,

  // From the transport.
  output logic         want_valid_o,
  input  logic         want_ready_i,
  output logic [15:0]  want_conn_o,
  output logic [31:0]  want_len_o,
  output logic         want_some_o,
  input  logic         rx_meta_valid_i,
  output logic         rx_meta_ready_o,
  input  logic [15:0]  rx_meta_conn_i,
  input  logic [31:0]  rx_meta_len_i,
  input  logic         rx_valid_i,
  output logic         rx_ready_o,
  input  logic [511:0] rx_data_i,
  input  logic         rx_last_i,
  output logic         rx_dropped_o,

  // DMA reads.
  output logic         read_valid_o,
  input  logic         read_ready_i,
  output logic [63:0]  read_va_o,
  output logic [31:0]  read_len_o,
  input  logic         data_valid_i,
  output logic         data_ready_o,
  input  logic [511:0] data_i,
  input  logic [63:0]  keep_i,
  input  logic         last_i,
  input  logic         cut_i,

  // DMA writes.
  output logic         write_valid_o,
  input  logic         write_ready_i,
  output logic [63:0]  write_va_o,
  output logic [31:0]  write_len_o,
  output logic         wdata_valid_o,
  input  logic         wdata_ready_i,
  output logic [511:0] wdata_o,
  output logic         wdata_cut_o,
  input  logic         report_valid_i,
  output logic         report_ready_o,
  input  logic         report_fault_i,
  input  logic         report_cut_i,
  input  logic [63:0]  report_va_i
);
  // Chunks under way to the GPU and back: reads of 512 bytes, each a PCIe round trip, fill the stream.
  localparam int unsigned Flight  = 32;
  localparam int unsigned FlightW = $clog2(Flight + 1);
  localparam int unsigned ConnW  = $clog2(Conns);
  localparam int unsigned SlotW  = $clog2(Slots);
  localparam logic [1:0] CtlOpen      = 2'd0;
  localparam logic [1:0] CtlClose     = 2'd1;
  localparam logic [1:0] CtlFlushSend = 2'd2;
  localparam logic [1:0] CtlFlushRecv = 2'd3;

  typedef logic [ConnW-1:0] conn_t;
  // Counts operations; the low bits are the slot.
  typedef logic [SlotW:0] place_t;

  // ---------------------------------------------------------------- Connections and their slots; side 1 sends
  logic [Conns-1:0] open_q;
  logic [Conns-1:0] todo_q;                // sends of which a chunk may leave, if there is credit
  logic [Conns-1:0] paid_q;                // there is
  logic [Conns-1:0] failed_q   [2];
  place_t           head_q     [2*Conns];  // the oldest that has not ended
  place_t           next_q     [2*Conns];  // the oldest of which bytes are to move
  place_t           tail_q     [2*Conns];
  logic [31:0]      credit_q   [Conns];
  logic [48:0]      op_q       [2*Conns*Slots];  // length, tag, some
  logic [95:0]      progress_q [2*Conns*Slots];  // address and bytes that are to move

  // ---------------------------------------------------------------- Events, one at a time
  localparam logic [3:0] Idle   = 4'd0;
  localparam logic [3:0] Ctl    = 4'd1;
  localparam logic [3:0] Op     = 4'd2;
  localparam logic [3:0] Want   = 4'd3;
  localparam logic [3:0] Credit = 4'd4;
  localparam logic [3:0] Send   = 4'd5;  // a chunk
  localparam logic [3:0] Recv   = 4'd6;  // a segment
  localparam logic [3:0] End    = 4'd7;  // of a chunk or a segment
  localparam logic [3:0] Done   = 4'd8;
  localparam logic [3:0] Fault  = 4'd9;
  localparam logic [3:0] Clear  = 4'd10; // after a reset: the places of all connections

  logic [3:0]  state_q;
  logic        send_q, final_q, refused_q, flushed_q, cut_q;
  conn_t       at_q;
  logic        legal_q;
  logic [31:0] bytes_q;
  logic [15:0] tag_q;
  logic [63:0] va_q;
  logic [FlightW-1:0] under_way_q [2];  // chunks and segments that have not ended

  wire [ConnW:0] side   = {send_q, at_q};
  place_t head, next, tail;
  assign head = head_q[side];
  assign next = next_q[side];
  assign tail = tail_q[side];
  wire [ConnW+SlotW:0] at_next = {side, next[SlotW-1:0]};
  wire [ConnW+SlotW:0] at_head = {side, head[SlotW-1:0]};
  wire [ConnW+SlotW:0] at_tail = {side, tail[SlotW-1:0]};
  wire [48:0] op_next   = op_q[at_next];
  wire [48:0] op_head   = op_q[at_head];
  wire [63:0] next_va   = progress_q[at_next][95:32];
  wire [31:0] next_left = progress_q[at_next][31:0];
  wire [31:0] head_left = progress_q[at_head][31:0];
  wire [31:0] credit    = credit_q[at_q];

  // The next connection of those that can send: one whose turn it is, else any.
  logic [Conns-1:0] turn_q;
  wire  [Conns-1:0] can   = open_q & todo_q & paid_q & ~failed_q[1];
  wire  [Conns-1:0] first = (can & turn_q) != '0 ? can & turn_q : can;
  conn_t pick;
  always_comb begin
    pick = '0;
    for (int unsigned i = 0; i < Conns; i++) if (first[Conns-1-i]) pick = conn_t'(Conns - 1 - i);
  end

  // What is under way on each side, in order, and how it has ended.
  logic tx_room, tx_valid, tx_take, rx_room, rx_valid, rx_take;
  logic [ConnW+32:0] tx_info;   // connection, last of its operation, bytes
  logic [ConnW:0]    rx_info;   // connection, last of its operation
  logic              sent_room, sent_valid, sent_take, sent_push;
  logic [ConnW+65:0] sent;      // connection, last, cut, address
  wire  flushing = ctl_valid_i && ctl_what_i[1];
  wire  can_ctl  = ctl_valid_i && !(flushing && under_way_q[ctl_what_i == CtlFlushSend] != '0);
  wire  can_end  = sent_valid || (report_valid_i && rx_valid);
  // Only what can be done at once: this side must not wait for the DMA, which waits for it.
  wire  can_send = can != '0 && read_ready_i && tx_room && !(flushing && ctl_what_i == CtlFlushSend) && under_way_q[1] != FlightW'(Flight);
  logic segment_free;
  wire  can_recv = rx_meta_valid_i && segment_free && write_ready_i && rx_room && !(flushing && ctl_what_i == CtlFlushRecv) && under_way_q[0] != FlightW'(8);

  // ---------------------------------------------------------------- What an event does
  wire [31:0] most    = credit < 32'(Chunk) ? credit : 32'(Chunk);
  wire [31:0] chunk   = next_left < most ? next_left : most;
  wire        in_full = chunk == next_left;
  wire        todo    = next != tail;
  wire        full    = (SlotW+1)'(tail - head) == (SlotW+1)'(Slots);
  wire        takes   = legal_q && open_q[at_q] && todo && !failed_q[0][at_q] && rx_meta_len_i != '0 && rx_meta_len_i <= next_left;
  wire        ends_op = op_next[0] || rx_meta_len_i == next_left;
  wire        op_ok   = legal_q && open_q[at_q] && !full && op_len_i != '0;

  assign read_valid_o  = state_q == Send && tx_room;
  assign read_va_o     = next_va;
  assign read_len_o    = chunk;
  wire   sends         = read_valid_o && read_ready_i;
  assign write_valid_o = state_q == Recv && takes && rx_room;
  assign write_va_o    = next_va;
  assign write_len_o   = rx_meta_len_i;
  wire   receives      = write_valid_o && write_ready_i;
  wire   drops         = state_q == Recv && !takes;

  assign ctl_ready_o     = state_q == Ctl && (!ctl_what_i[1] || !legal_q || head == tail);
  assign op_ready_o      = state_q == Op;
  assign credit_ready_o  = state_q == Credit;
  assign rx_meta_ready_o = receives || drops;
  assign rx_dropped_o    = drops;
  assign want_valid_o    = state_q == Want;
  assign want_conn_o     = 16'(at_q);
  assign want_len_o      = bytes_q;
  assign want_some_o     = final_q;
  assign done_valid_o    = state_q == Done;
  assign done_send_o     = send_q;
  assign done_tag_o      = tag_q;
  assign done_bytes_o    = bytes_q;
  assign done_refused_o  = refused_q;
  assign done_flushed_o  = flushed_q;
  assign fault_valid_o   = state_q == Fault;
  assign fault_send_o    = send_q;
  assign fault_conn_o    = 16'(at_q);
  assign fault_va_o      = va_q;
  assign sent_take       = state_q == Idle && !can_ctl && sent_valid;
  assign report_ready_o  = state_q == Idle && !can_ctl && !sent_valid && rx_valid;
  assign rx_take         = report_ready_o && report_valid_i;

  wire pops    = state_q == Done && done_ready_i && !refused_q;
  wire adds    = state_q == Op && op_ok;
  wire opens   = state_q == Ctl && legal_q && ctl_what_i == CtlOpen;
  wire clears  = state_q == Clear;
  wire moves   = sends || receives;
  wire [31:0] moved = sends ? chunk : rx_meta_len_i;
  wire ends_it = sends ? in_full : ends_op;

  always_ff @(posedge clk_i) begin
    if (clears || pops) head_q[side] <= clears ? '0 : place_t'(head + 1'b1);
    if (clears || adds) tail_q[side] <= clears ? '0 : place_t'(tail + 1'b1);
    // A flush leaves nothing to move.
    if (clears || (moves && ends_it) || (pops && flushed_q))
      next_q[side] <= clears ? '0 : place_t'((moves ? next : head) + 1'b1);
    if (adds) op_q[at_tail] <= {op_len_i, op_tag_i, op_some_i};
    if (adds || moves)
      progress_q[adds ? at_tail : at_next] <= adds ? {op_va_i, op_len_i} : {next_va + 64'(moved), next_left - moved};
    if (opens || sends || state_q == Credit)
      credit_q[at_q] <= opens ? '0 : sends ? credit - chunk : credit + credit_i;
  end

  always_ff @(posedge clk_i) begin
    case (state_q)
      Idle: begin
        refused_q <= 1'b0;
        flushed_q <= 1'b0;
        if (can_ctl) begin
          state_q <= Ctl;
          at_q    <= conn_t'(ctl_conn_i);
          legal_q <= 32'(ctl_conn_i) < Conns;
          send_q  <= ctl_what_i == CtlFlushSend;
        end else if (can_end) begin
          state_q <= End;
          send_q  <= sent_valid;
          at_q    <= sent_valid ? sent[ConnW+65:66] : rx_info[ConnW:1];
          final_q <= sent_valid ? sent[65] : rx_info[0];
          cut_q   <= sent_valid ? sent[64] : report_fault_i || report_cut_i;
          va_q    <= sent_valid ? sent[63:0] : report_va_i;
        end else if (op_valid_i) begin
          state_q <= Op;
          at_q    <= conn_t'(op_conn_i);
          legal_q <= 32'(op_conn_i) < Conns;
          send_q  <= op_send_i;
        end else if (credit_valid_i) begin
          state_q <= Credit;
          at_q    <= conn_t'(credit_conn_i);
          legal_q <= 32'(credit_conn_i) < Conns;
        end else if (can_recv) begin
          state_q <= Recv;
          at_q    <= conn_t'(rx_meta_conn_i);
          legal_q <= 32'(rx_meta_conn_i) < Conns;
          send_q  <= 1'b0;
        end else if (can_send) begin
          state_q <= Send;
          at_q    <= pick;
          send_q  <= 1'b1;
          turn_q  <= (can & turn_q) != '0 ? turn_q & ~(Conns'(1) << pick) : ~(Conns'(1) << pick);
        end
      end
      Ctl: begin
        if (ctl_ready_o) begin
          state_q <= Idle;
          if (legal_q) begin
            if (ctl_what_i == CtlOpen)  open_q[at_q] <= 1'b1;
            if (ctl_what_i == CtlClose) open_q[at_q] <= 1'b0;
            if (!ctl_what_i[1] || send_q) begin
              todo_q[at_q]      <= 1'b0;
              failed_q[1][at_q] <= 1'b0;
            end
            if (!ctl_what_i[1]) paid_q[at_q] <= 1'b0;
            if (!ctl_what_i[1] || !send_q) failed_q[0][at_q] <= 1'b0;
          end
        end else begin
          state_q   <= Done;
          flushed_q <= 1'b1;
          tag_q     <= op_head[16:1];
          bytes_q   <= op_head[48:17] - head_left;
        end
      end
      Op: begin
        bytes_q   <= op_ok && !op_send_i ? op_len_i : '0;
        tag_q     <= op_tag_i;
        final_q   <= op_some_i;
        refused_q <= !op_ok;
        state_q   <= !op_ok ? Done : op_send_i ? Idle : Want;
        if (op_ok && op_send_i) todo_q[at_q] <= 1'b1;
      end
      Want: if (want_ready_i) state_q <= Idle;
      Credit: begin
        if (legal_q && credit + credit_i != '0) paid_q[at_q] <= 1'b1;
        state_q <= Idle;
      end
      Send: if (sends) begin
        todo_q[at_q] <= !in_full || place_t'(next + 1'b1) != tail;
        paid_q[at_q] <= credit != chunk;
        state_q      <= Idle;
      end
      Recv: if (receives || drops) state_q <= Idle;
      End: begin
        state_q <= cut_q ? Fault : final_q && !failed_q[send_q][at_q] && head != next ? Done : Idle;
        tag_q   <= op_head[16:1];
        bytes_q <= op_head[48:17] - head_left;
        if (cut_q) failed_q[send_q][at_q] <= 1'b1;
      end
      Clear: begin
        {send_q, at_q} <= side + 1'b1;
        if (side == '1) state_q <= Idle;
      end
      Done: if (done_ready_i) state_q <= flushed_q ? Ctl : Idle;
      default: if (fault_ready_i) state_q <= Idle;
    endcase
    if (state_q == Done && done_ready_i) flushed_q <= 1'b0;
    under_way_q[1] <= under_way_q[1] + FlightW'(sends) - FlightW'(state_q == End && send_q);
    under_way_q[0] <= under_way_q[0] + FlightW'(receives) - FlightW'(state_q == End && !send_q);
    if (!rst_ni) begin
      state_q        <= Clear;
      {send_q, at_q} <= '0;
      open_q         <= '0;
      todo_q         <= '0;
      paid_q         <= '0;
      failed_q[0]    <= '0;
      failed_q[1]    <= '0;
      turn_q         <= '0;
      under_way_q[0] <= '0;
      under_way_q[1] <= '0;
    end
  end

  // ---------------------------------------------------------------- Chunks out
  localparam logic [1:0] Meta = 2'd0;
  localparam logic [1:0] Data = 2'd1;
  localparam logic [1:0] Ended = 2'd2;
  logic [1:0]  tx_q;
  logic        tx_cut_q;
  logic [63:0] tx_va_q;

  fifo #(.Width(ConnW + 33), .Depth(Flight)) i_tx (
    .clk_i, .rst_ni, .in_valid_i(sends), .in_ready_o(tx_room), .in_i({at_q, in_full, chunk}),
    .out_valid_o(tx_valid), .out_ready_i(tx_take), .out_o(tx_info));
  fifo #(.Width(ConnW + 66), .Depth(8)) i_sent (
    .clk_i, .rst_ni, .in_valid_i(sent_push), .in_ready_o(sent_room),
    .in_i({tx_info[ConnW+32:32], tx_cut_q, tx_va_q}),
    .out_valid_o(sent_valid), .out_ready_i(sent_take), .out_o(sent));

  assign tx_meta_valid_o = tx_q == Meta && tx_valid;
  assign tx_meta_conn_o  = 16'(tx_info[ConnW+32:33]);
  assign tx_meta_len_o   = tx_info[31:0];
  assign tx_valid_o      = tx_q == Data && data_valid_i;
  assign data_ready_o    = tx_q == Data && tx_ready_i;
  assign tx_data_o       = data_i;
  assign tx_keep_o       = keep_i;
  assign tx_last_o       = last_i;
  assign tx_cut_o        = cut_i;
  assign sent_push       = tx_q == Ended;
  assign tx_take         = sent_push && sent_room;

  always_ff @(posedge clk_i) begin
    case (tx_q)
      Meta: if (tx_meta_valid_o && tx_meta_ready_i) tx_q <= Data;
      Data: if (data_valid_i && data_ready_o && last_i) begin
        tx_q     <= Ended;
        tx_cut_q <= cut_i;
        tx_va_q  <= data_i[63:0];
      end
      default: if (sent_room) tx_q <= Meta;
    endcase
    if (!rst_ni) tx_q <= Meta;
  end

  // ---------------------------------------------------------------- Segments in
  localparam logic [1:0] Free = 2'd0;
  localparam logic [1:0] Pass = 2'd1;
  localparam logic [1:0] Cut  = 2'd2;  // it has ended too early
  localparam logic [1:0] Drop = 2'd3;  // it goes on too long, or is not wanted
  logic [1:0]  seg_q;
  logic [26:0] beats_q;
  wire  [32:0] beats = (33'(rx_meta_len_i) + 33'd63) >> 6;

  fifo #(.Width(ConnW + 1), .Depth(8)) i_rx (
    .clk_i, .rst_ni, .in_valid_i(receives), .in_ready_o(rx_room), .in_i({at_q, ends_op}),
    .out_valid_o(rx_valid), .out_ready_i(rx_take), .out_o(rx_info));

  assign segment_free  = seg_q == Free;
  assign rx_ready_o    = seg_q == Drop || (seg_q == Pass && wdata_ready_i);
  assign wdata_valid_o = seg_q == Cut || (seg_q == Pass && rx_valid_i);
  assign wdata_o       = rx_data_i;
  assign wdata_cut_o   = seg_q == Cut;

  always_ff @(posedge clk_i) begin
    case (seg_q)
      Free: if (rx_meta_ready_o) begin
        beats_q <= beats[26:0];
        // One of no bytes has one beat as well.
        seg_q   <= receives ? Pass : Drop;
      end
      Pass: if (rx_valid_i && wdata_ready_i) begin
        beats_q <= beats_q - 1'b1;
        if (beats_q == 27'd1) seg_q <= rx_last_i ? Free : Drop;
        else if (rx_last_i)   seg_q <= Cut;
      end
      Cut: if (wdata_ready_i) seg_q <= Free;
      default: if (rx_valid_i && rx_last_i) seg_q <= Free;
    endcase
    if (!rst_ni) seg_q <= Free;
  end
  wire unused = ^{beats[32:27], op_next[48:1], op_head[0]};

`ifdef FORMAL
  `include "direct_props.svh"
`endif
endmodule
