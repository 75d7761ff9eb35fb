"""From a checked request to the Submits of its choices."""

from hostless.v1 import frontend_pb2 as pb
from services.gateway.openai_schema import Request
from services.gateway.prompts import ChatPrompt


def to_submits(request: Request, request_id: str, traceparent: str, tenant: str) -> list[pb.Submit]:
    """One Submit a choice, in order; the session gives them their ids.

    A request's only choice carries its request id, the others `id-1`, `id-2`, ... A given seed goes up by one from
    choice to choice of a prompt, so that they differ and the same request gives the same choices again.
    """
    return [
        _submit(request, index, f"{request_id}-{index}" if index else request_id, traceparent, tenant)
        for index in range(request.choices)
    ]


def _submit(request: Request, index: int, request_id: str, traceparent: str, tenant: str) -> pb.Submit:
    sampling = request.sampling
    seed = None if sampling.seed is None else (sampling.seed + index % request.n) % 2**64
    submit = pb.Submit(
        request_id=request_id,
        traceparent=traceparent,
        model=request.model,
        sampling=pb.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            stop_token_ids=sampling.stop_token_ids,
        ),
        stop=request.stop,
        echo=request.echo,
        tenant=tenant,
    )
    match request.prompts[index // request.n]:
        case ChatPrompt(messages_json, tools, variables_json):
            submit.chat.messages_json = messages_json
            submit.chat.variables_json = variables_json
            if tools is not None:
                submit.chat.tools_json = tools.json
                if tools.call is not None:
                    submit.chat.call = tools.call
        case str(text):
            submit.text = text
        case ids:
            submit.token_ids.ids.extend(ids)
    return submit
