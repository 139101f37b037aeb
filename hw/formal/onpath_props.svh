// Proof of onpath, included at its end: for every behaviour of network, takers and engine, at any time, the stream leaves as it came, the engine
// gets its beats in order until it fails, and each stream is followed by one result. One beat of the stream is chosen freely (anyconst).
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) logic [31:0] f_beat;
wire f_in     = in_valid_i && in_ready_o;
wire f_out    = out_valid_o && out_ready_i;
wire f_op     = op_in_valid_o && op_in_ready_i;
wire f_result = (op_out_valid_o && op_out_ready_i) || (op_return_valid_o && op_return_ready_i);

// Beats that came, left for the GPU and left for the engine; the chosen one; streams that ended, and results.
logic [31:0]  m_in, m_out, m_op, m_ended, m_results;
logic [511:0] m_data;
logic [63:0]  m_keep;
logic         m_last, m_return, m_failed;
// Cycles in a row in which nothing but the engine was waited for.
logic [31:0]  m_awaited;
wire f_ended = f_in && in_last_i;
wire f_closed = f_result && result_last_o;
always_ff @(posedge clk_i) begin
  if (f_in && m_in == f_beat) {m_data, m_keep, m_last} <= {in_i, in_keep_i, in_last_i};
  if (f_ended) m_return <= return_i;
  m_in      <= m_in + 32'(f_in);
  m_out     <= m_out + 32'(f_out);
  m_op      <= m_op + 32'(f_op);
  m_ended   <= m_ended + 32'(f_ended);
  m_results <= m_results + 32'(f_closed);
  if (failed_q) m_failed <= 1'b1;
  if (f_closed) begin
    m_failed <= 1'b0;
    // A failed engine has missed beats; from its reset on it counts anew.
    m_op     <= m_in;
  end
  m_awaited <= (full_q && out_done && !leaves) || (result_q && !res_full_q && !op_res_valid_i) ? m_awaited + 32'd1 : '0;
  if (!rst_ni) begin
    {m_in, m_out, m_op, m_ended, m_results, m_awaited} <= '0;
    m_failed <= 1'b0;
  end
end

always_comb if (f_started && rst_ni) begin
  // Each beat leaves once, in order, as it came.
  if (out_valid_o) assert (m_out + 32'd1 == m_in);
  if (out_valid_o && m_out == f_beat) assert ({out_o, out_keep_o, out_last_o} == {m_data, m_keep, m_last});
  if (op_in_valid_o) assert (op_rst_no && (m_failed || m_op + 32'd1 == m_in));
  if (op_in_valid_o && m_in - 32'd1 == f_beat) assert ({out_o, out_keep_o, out_last_o} == {m_data, m_keep, m_last});
  assert (m_out == m_in || m_out + 32'd1 == m_in);
  // One result at most is due; the next stream waits for it.
  assert (m_ended == m_results || m_ended == m_results + 32'd1);
  if (f_in) assert (m_ended == m_results);
  // It leaves at the place chosen, after the whole stream, and ends with an error exactly when the engine has failed.
  if (op_out_valid_o || op_return_valid_o) begin
    assert (m_ended == m_results + 32'd1 && m_out == m_in);
    assert (op_return_valid_o == m_return && op_out_valid_o == !m_return);
  end
  if (op_out_valid_o || op_return_valid_o) assert (!result_error_o || (m_failed && result_last_o && result_keep_o == '0));
  // Neither stream nor result waits longer for the engine than for its deadline.
  assert (m_awaited <= Deadline + 1);
end

always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(out_valid_o && !out_ready_i))
    assert (out_valid_o && $stable(out_o) && $stable(out_keep_o) && $stable(out_last_o));
  if ($past(op_in_valid_o && !op_in_ready_i)) assert (op_in_valid_o || failed_q);
  if ($past(op_out_valid_o && !op_out_ready_i)) assert (op_out_valid_o);
  if ($past(op_return_valid_o && !op_return_ready_i)) assert (op_return_valid_o);
  if ($past((op_out_valid_o && !op_out_ready_i) || (op_return_valid_o && !op_return_ready_i)))
    assert ($stable(result_o) && $stable(result_keep_o) && $stable(result_last_o) && $stable(result_error_o));
end

// Invariants.
always_comb if (f_started && rst_ni) begin
  assert (!(full_q && result_q) && !(res_full_q && !result_q));
  assert (32'(wait_q) < Deadline + 32'(failed_q));
  assert ((m_out != m_in) == (full_q && !sent_out_q));
  assert (m_failed || failed_q || (m_op != m_in) == (full_q && !sent_op_q));
  assert (m_failed || m_op == m_in || m_op + 32'd1 == m_in);
  assert ((m_ended != m_results) == (result_q || (full_q && last_q)));
  if (full_q && m_in - 32'd1 == f_beat) assert ({beat_q, keep_q, last_q} == {m_data, m_keep, m_last});
  if (result_q || (full_q && last_q)) assert (return_q == m_return);
  if (m_failed) assert (failed_q);
  if (res_full_q && res_error_q) assert (res_last_q && failed_q && m_failed && res_keep_q == '0);
  if (!failed_q || wait_q != '0) assert (m_awaited <= 32'(wait_q));
  else assert (m_awaited <= Deadline + 1 && (m_awaited == '0 || res_full_q));
end
