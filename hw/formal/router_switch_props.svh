// Proof of router_switch, included at its end: a packet that leaves a queue leaves by one output, the one of its way, unchanged and in its channel, or is dropped
// because it has no way; a wire gets it only with the free slots that it needs. What may leave asks its output's arbiter, and nothing else does, so the
// bound of `router_arbiter`, asserted in each of them here, is that of packets. One queue and one output are chosen freely.
//
// It assumes, as the arbiters do, that R and skip_i stay as they are.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) logic [7:0] f_queue;
(* anyconst *) logic [3:0] f_out;
always_comb assume (32'(f_queue) < Queues && 32'(f_out) < Outputs);
wire [3:0] f_way     = in_way_i[4*f_queue +: 4];
wire [3:0] f_channel = 4'(f_queue % 8'(Channels));
wire       f_free    = 32'(f_out) >= Wires
  || (entering_i[f_out*Queues+f_queue] ? free_two_i[f_out*Channels+f_channel] : free_i[f_out*Channels+f_channel]);
wire       f_may     = in_valid_i[f_queue] && f_way == f_out && f_free;
wire       f_leaves  = pick[f_out][f_queue];

always_comb if (f_started && rst_ni) begin
  assert (request[f_out][f_queue] == f_may);
  if (f_leaves) begin
    assert (f_may && out_valid_o[f_out] && out_channel_o[4*f_out +: 4] == f_channel);
    assert (out_o[Width*f_out +: Width] == in_i[Width*f_queue +: Width]);
    assert (in_taken_o[f_queue] == out_ready_i[f_out]);
  end
  if (f_way == f_out && !f_leaves) assert (!in_taken_o[f_queue]);
  if (out_valid_o[f_out]) assert (pick[f_out] != '0 && (pick[f_out] & (pick[f_out] - Queues'(1))) == '0);
  // With skip_i an output that may take a packet takes one in each cycle.
  if (skip_i && f_may) assert (out_valid_o[f_out]);
  assert (dropped_o[f_queue] == (in_valid_i[f_queue] && 32'(f_way) > Wires));
  if (dropped_o[f_queue]) assert (in_taken_o[f_queue]);
end
