# `genius serve` on a CPU, from the wheel. docs/deploy.md says how to build and run it.
FROM python:3.12 AS build
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
COPY recipes ./recipes
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# Name PyTorch's index of CPU wheels here, or pip takes the much larger CUDA build.
ARG PIP_EXTRA_INDEX_URL=
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -c /tmp/constraints.txt "genius-search[serve] @ file://$(ls /wheels/*.whl)" \
    && rm -rf /wheels /tmp/constraints.txt \
    && useradd --create-home genius \
    && install -d -o genius /index
USER genius
ENV GENIUS_INDEX=/index
VOLUME /index
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=3)"]
ENTRYPOINT ["genius"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
